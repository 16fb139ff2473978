"""Prompts and rows of a dataset in JSON, read strictly: 64-bit numbers, whole characters, bounded depth."""

import re
from typing import Any

from mindbatch.io.fault_lines import shown
from mindbatch.io.strict_json import JsonFault, JsonWording, StrictReader, first_unicode_fault, unicode_fault
from mindbatch.prompts.prompt_lines import EMPTY_LINE

MAX_DEPTH = 100
"""Objects and arrays within each other; far above any real row, far below what later steps can take."""

_INTEGERS = range(-(2**63), 2**64)
_BLANK = " \t\r\n"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_KINDS = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false"}
_READER = StrictReader(
    JsonWording(
        syntax="not valid JSON: {what} at character {place}",
        repeated_key="the key {found} stands twice in one object",
        no_number="{found} is no number of JSON",
        large_float="the number {found} is too large for 64 bits",
        large_integer="the whole number {found} does not fit 64 bits; give it as text",
        too_deep=f"nested more than {MAX_DEPTH} levels deep",
    ),
    max_digits=len(str(_INTEGERS.start)),
    integers=_INTEGERS,
    max_depth=MAX_DEPTH,
)


def parse_row(text: str) -> dict[str, Any]:
    """The object that `text` holds. Raises JsonFault as `parse_json`, and for any other value."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise JsonFault(f"holds {_KINDS.get(type(value), 'null')}; must be a JSON object")
    return value


def parse_json(text: str) -> Any:
    """The value that `text` holds.

    Raises:
        JsonFault: anything but one JSON value; NaN, Infinity and numbers that 64 bits cannot hold; a key that
            stands twice; half a surrogate pair; values nested too deeply. Without the row's place.
    """
    if not text.strip(_BLANK):
        raise JsonFault(EMPTY_LINE)
    value = _READER.parse(text)
    if _SURROGATE.search(text):
        _check_text(value)
    return value


def _check_text(row: Any) -> None:
    """Refuses half a surrogate pair, which JSON can write but UTF-8 cannot."""
    if not isinstance(row, dict):
        if fault := first_unicode_fault(row):
            raise JsonFault(f"its text {fault}")
        return
    for column, value in row.items():
        if fault := unicode_fault(column):
            raise JsonFault(f"the column name {shown(column)} {fault}")
        if fault := first_unicode_fault(value):
            raise JsonFault(f"column {shown(column)} {fault}")
