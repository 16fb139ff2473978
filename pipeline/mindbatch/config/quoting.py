"""Texts on a command line that Hydra's grammar reads as something else, and how they are quoted."""

import re
import shlex

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

PARSER = OverridesParser.create()
LONGEST_ECHO = 200
"""Characters of a value that are worth repeating in a hint."""
_NO_ASCII = re.compile(r"[^\x00-\x7f]")


def is_plain(token: str) -> bool:
    """True if a text that Hydra's grammar reads as something else, or not at all, is meant to the letter:
    Q: {{ question }}, or one with commas.

    Not where the user has begun to quote it, and not where it may be meant as a reference.
    """
    value = token.partition("=")[2].strip()
    return value[:1] not in ('"', "'") and "${" not in value


def beyond_ascii(token: str) -> str | None:
    """The value as it is written, where Hydra's grammar misses only letters beyond ASCII in it: 你好."""
    name, _, written = token.partition("=")
    plain = _NO_ASCII.sub("x", written)
    if plain == written:
        return None
    try:
        override = PARSER.parse_override(f"{name}={plain}")
    except HydraException:
        return None
    is_text = not override.is_sweep_override() and isinstance(override.value(), str)
    return written.strip() if is_text and is_plain(token) else None


def quoting_hint(token: str, as_text: bool = False) -> str:
    """Explains how to write the value so that the shell and Hydra both take it as one text."""
    key, _, value = token.partition("=")
    looks_nested = value[:1] in ('"', "'") or (value[:1] in ("[", "{") and not as_text)
    if len(value) > LONGEST_ECHO or looks_nested:
        return """check the brackets and quotes, for example prompts='["One, two", "It is"]'"""
    text = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if key.lstrip("+") == "prompts":
        text = f"[{text}]"
    return f"quote a text that holds commas or special characters: {key}={shlex.quote(text)}"
