"""`mindbatch reshard`, from its settings to a checked order, and what it prints."""
