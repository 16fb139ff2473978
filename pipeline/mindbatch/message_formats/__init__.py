"""Parsers of generated chat messages: reasoning and tool calls are taken out of the text, as it streams."""

NAMES = ("qwen3", "hermes", "qwen3_coder", "deepseek", "glm4", "llama3", "mistral", "gpt_oss")
"""The formats; what they are, `formats.py` says."""
