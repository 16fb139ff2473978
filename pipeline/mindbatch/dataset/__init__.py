"""From the files of a dataset to rows that can be run."""
