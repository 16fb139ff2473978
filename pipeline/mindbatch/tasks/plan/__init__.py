"""`mindbatch plan`: what a batch needs before it is run."""
