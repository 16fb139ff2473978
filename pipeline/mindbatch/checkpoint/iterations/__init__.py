"""MindFormers' Checkpoint 2.0: what its metadata.json says of the shards, and what is written so."""
