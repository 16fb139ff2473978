"""JSON schemas compiled to grammars whose every text is valid, or refused by keyword and pointer."""
