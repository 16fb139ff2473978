"""Reading config.json: every key of a type is used, known not to matter, or refused."""
