"""Owns the one text that a JSON schema is known by, however it was given."""

import json
import math
from collections.abc import Mapping
from typing import Any

from mindbatch.io.strict_json import MAX_DIGITS, JsonWording, StrictReader

MOST_CHARACTERS = 1 << 16
"""Most characters of a schema's text."""
MOST_NESTING = 100
"""Levels of objects and arrays in a schema."""
_TOO_DEEP = f"is nested too deeply; at most {MOST_NESTING} levels are allowed"
_READER = StrictReader(
    JsonWording(
        syntax="is not JSON ({error})",
        repeated_key="is not JSON (the key {found} appears twice in one object)",
        no_number="is not JSON ({found} is no number)",
        large_float="holds the number {found}, which is too large",
        large_integer=f"holds a number of {{digits}} digits; at most {MAX_DIGITS} are allowed",
        too_deep=_TOO_DEEP,
    )
)


def canonical_schema(value: object) -> str:
    """The compact JSON text of a schema that is given as text, as a mapping, or as true or false.

    The order of keys stays: properties are generated in the schema's order. The text of a text is itself, so
    that normalising twice changes nothing.

    Raises:
        ValueError: the reason, as words that follow "decoding.json_schema=...: ".
    """
    if isinstance(value, str):
        if len(value) > MOST_CHARACTERS:
            raise ValueError(f"has {len(value)} characters; at most {MOST_CHARACTERS} are allowed")
        value = _READER.parse(value)
    if not isinstance(value, Mapping | bool):
        raise ValueError(f"holds {_kind(value)}; a JSON schema is an object, or true or false")
    text = json.dumps(_plain(value, 0), ensure_ascii=False, separators=(",", ":"))
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"has {len(text)} characters; at most {MOST_CHARACTERS} are allowed")
    return text


def _plain(value: Any, depth: int) -> Any:
    """The value in JSON's own Python types; other mappings and tuples become dicts and lists."""
    if depth > MOST_NESTING:
        raise ValueError(_TOO_DEEP)
    if isinstance(value, Mapping):
        return {_sound_key(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, str):
        return _sound_text(value)
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"holds {_kind(value)}, which JSON has not")


def _sound_key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"has the key {key!r}; keys of JSON are texts")
    return _sound_text(key)


def _sound_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"holds half a character (\\u{ord(text[error.start]):04x})") from error
    return text


def _kind(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"the number {value}"
    names = {list: "an array", tuple: "an array", str: "a text", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), f"a Python {type(value).__name__}")
