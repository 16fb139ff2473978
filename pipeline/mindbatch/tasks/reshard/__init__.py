"""`mindbatch reshard`: its settings, the plan that it makes of them, and what it prints."""
