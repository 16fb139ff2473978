"""A step as a list of calls of C++ functions: recorded from a model's cells, laid out in memory, run."""
