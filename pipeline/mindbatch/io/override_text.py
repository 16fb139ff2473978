"""Overrides of the command line whose values are meant to the letter, whatever characters they hold."""

import json
import re
from collections.abc import Sequence

_REFERENCE = re.compile(r"(\\*)\$\{")
_QUOTE_OR_END = re.compile(r'(\\*)("|\Z)')


def literal(text: str) -> str:
    """`text` as OmegaConf takes it to the letter: ${ begins a reference but after a backslash."""
    return _REFERENCE.sub(lambda match: match[1] * 2 + "\\${", text)


def text_override(key: str, text: str) -> str:
    """`key="text"` in Hydra's grammar."""
    return f"{key}={quoted(literal(text))}"


def quoted(text: str) -> str:
    """A text in Hydra's grammar, in which a backslash is special before a quote only; a ${ stays one."""

    def escaped(match: re.Match[str]) -> str:
        return match[1] * 2 + ('\\"' if match[2] else "")

    return f'"{_QUOTE_OR_END.sub(escaped, text)}"'


def texts_override(key: str, texts: Sequence[str]) -> str:
    """`key=["text", ...]` in JSON."""
    return f"{key}={json.dumps([literal(text) for text in texts])}"
