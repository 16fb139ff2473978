"""`mindbatch reshard`: converts a checkpoint for other ranks, names, formats or dtypes."""
