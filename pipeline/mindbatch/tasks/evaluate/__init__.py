"""`mindbatch evaluate`: scores of adapters, checkpoints and decodings over one task, side by side."""
