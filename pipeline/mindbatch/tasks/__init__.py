"""The tasks of the command line, a module or a package for each, and their pages."""
