"""`mindbatch compile`: the graphs of ranks, compiled for Ascend in simulation."""
