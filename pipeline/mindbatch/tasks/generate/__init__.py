"""`mindbatch generate`: prompts in, text out."""
