"""Recognises texts that Hydra's grammar does not read as texts, and explains how to quote them."""

import re
import shlex

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

PARSER = OverridesParser.create()
LONGEST_ECHO = 200
"""Limit of characters of a value that a hint repeats."""
_NO_ASCII = re.compile(r"[^\x00-\x7f]")


def is_plain(token: str) -> bool:
    """True if a value may be a literal text even though Hydra's grammar does not read it as one.

    Examples are Q: {{ question }}, and texts with commas. Quoted values and references are none.
    """
    value = token.partition("=")[2].strip()
    return value[:1] not in ('"', "'") and "${" not in value


def beyond_ascii(token: str) -> str | None:
    """Returns the literal value if only letters beyond ASCII keep Hydra's grammar from reading it: 你好."""
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
    """Explains how to quote the value for both the shell and Hydra."""
    key, _, value = token.partition("=")
    looks_nested = value[:1] in ('"', "'") or (value[:1] in ("[", "{") and not as_text)
    if len(value) > LONGEST_ECHO or looks_nested:
        return """check the brackets and quotes, for example prompts='["One, two", "It is"]'"""
    text = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if key.lstrip("+") == "prompts":
        text = f"[{text}]"
    return f"quote a text that holds commas or special characters: {key}={shlex.quote(text)}"
