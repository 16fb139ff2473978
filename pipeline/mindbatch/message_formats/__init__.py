"""Parsers of generated chat messages: reasoning and tool calls are taken out of the text, as it streams."""

NAMES = (
    *(
        "qwen3",
        "hermes",
        "qwen3_coder",
        "deepseek",
        "glm4",
        "llama3",
        "mistral",
        "gpt_oss",
        "kimi_k2",
        "lfm2",
    ),
    *("seed_oss", "granite", "deepseek_v32", "minimax_m2", "hunyuan", "cohere", "command_r", "apertus"),
    *("gemma4", "olmo3", "pythonic", "nemotron", "gigachat", "functools", "glm"),
)
"""The formats; what they are, `formats.py` says."""
