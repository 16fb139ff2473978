"""`mindbatch compare`: the same prompts under several decoding strategies."""
