"""JSON pointers (RFC 6901): how keys are written in them, and the value that one leads to."""

from collections.abc import Mapping
from typing import Any

_MAX_DIGITS = 9
"""Maximum number of digits of an index; no list is longer."""


def escaped(key: str) -> str:
    """Escapes a key as a step of a pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def value_at(document: Any, pointer: str) -> Any:
    """Looks up the value that a pointer leads to; None where there is none.

    pointer: as it is in a document; of a reference's fragment, percent-encoding is to be decoded before.
    """
    for step in pointer.split("/")[1:]:
        document = _member(document, step.replace("~1", "/").replace("~0", "~"))
    return document


def _member(value: Any, step: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(step)
    is_index = isinstance(value, list) and step.isdecimal() and len(step) <= _MAX_DIGITS
    return value[int(step)] if is_index and int(step) < len(value) else None
