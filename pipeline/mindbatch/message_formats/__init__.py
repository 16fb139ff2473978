"""Parsers of generated chat messages: reasoning and tool calls are taken out of the text, as it streams."""
