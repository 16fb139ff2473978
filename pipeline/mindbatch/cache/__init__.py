"""Storage of the paged key/value cache."""
