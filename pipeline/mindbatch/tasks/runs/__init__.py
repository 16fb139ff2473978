"""`mindbatch plan`: estimates the tokens, memory and time of a batch before it runs."""
