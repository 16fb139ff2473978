"""Who starts the rank processes of a node: a module for each launcher."""
