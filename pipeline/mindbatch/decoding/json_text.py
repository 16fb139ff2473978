"""Owns the one text that a JSON schema is known by, however it was given."""

import json
from collections.abc import Mapping

from mindbatch.io.fault_lines import shown
from mindbatch.io.strict_json import StrictReader, value_faults

MOST_CHARACTERS = 1 << 16
"""Most characters of a schema's text."""
MOST_NESTING = 100
"""Levels of objects and arrays in a schema."""
_READER = StrictReader()


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
        raise ValueError(f"found {shown(value)}; a JSON schema is an object, or true or false")
    if faults := value_faults(value, "schema", MOST_NESTING):
        raise ValueError(faults[0])
    # What JSON has no type for is a mapping of another class now.
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=dict)
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"has {len(text)} characters; at most {MOST_CHARACTERS} are allowed")
    return text
