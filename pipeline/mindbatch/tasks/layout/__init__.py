"""`mindbatch layout`: shows the shards of each rank, and writes MindSpore's strategy files."""
