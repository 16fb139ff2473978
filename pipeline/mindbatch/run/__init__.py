"""Running a whole dataset: what the engine does meanwhile, as shown and logged, and the files at the end."""
