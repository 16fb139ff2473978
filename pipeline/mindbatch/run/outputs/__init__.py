"""The files that a finished run leaves: results and errors in the order of the data, each whole or absent."""
