"""`mindbatch plan`: what a batch needs, what ranks hold, and MindSpore's layout of MindFormers' models."""
