"""`mindbatch generate`: generates text for a few prompts."""
