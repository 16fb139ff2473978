"""The tasks of the command line, one module each, and what they print."""
