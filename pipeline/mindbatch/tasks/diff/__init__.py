"""`mindbatch diff`: two runs compared row by row."""
