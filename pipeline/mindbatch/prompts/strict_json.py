"""Reading JSON strictly (RFC 8259, I-JSON of RFC 7493): nothing is guessed, rounded or dropped."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn

from mindbatch.fault_lines import shown
from mindbatch.prompts.messages import text_fault
from mindbatch.prompts.prompt_lines import EMPTY_LINE

MAX_DEPTH = 100
"""Objects and arrays within each other; far above any real row, far below what later steps can take."""

_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_SURE_DIGITS = 18
_BLANK = " \t\r\n"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_KINDS = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false"}


class RowFault(ValueError):
    """Why one row cannot be read; the message is the reason, without the row's place."""


def parse_row(text: str) -> dict[str, Any]:
    """The object that `text` holds. Raises RowFault as `parse_json`, and for any other value."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise RowFault(f"holds {_KINDS.get(type(value), 'null')}; must be a JSON object")
    return value


def parse_json(text: str) -> Any:
    """The value that `text` holds.

    Raises:
        RowFault: anything but one JSON value; NaN, Infinity and numbers that 64 bits cannot hold; a key that
            stands twice; half a surrogate pair; values nested too deeply.
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        if not text.strip(_BLANK):
            raise RowFault(EMPTY_LINE) from None
        what = error.msg.removesuffix(" at").rstrip(": ")
        raise RowFault(f"not valid JSON: {what} at character {error.pos}") from None
    except RecursionError:
        raise RowFault(_TOO_DEEP) from None
    _check_depth(value, text)
    if _SURROGATE.search(text):
        _check_text(value)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RowFault(f"the key {shown(_first_twice(pairs))} stands twice in one object")
    return found


def _first_twice(pairs: list[tuple[str, Any]]) -> str:
    counts = Counter(key for key, _ in pairs)
    return next(key for key, count in counts.items() if count > 1)


def _whole_number(text: str) -> int:
    if len(text) <= _SURE_DIGITS:
        return int(text)
    number = int(text) if len(text) <= len(str(_SMALLEST)) else _LARGEST + 1
    if not _SMALLEST <= number <= _LARGEST:
        raise RowFault(f"the whole number {shown(text)} does not fit 64 bits; give it as text")
    return number


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise RowFault(f"the number {shown(text)} is too large for 64 bits")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise RowFault(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_int=_whole_number,
    parse_float=_finite_number,
    parse_constant=_refuse_constant,
)
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"


def _check_depth(value: Any, text: str) -> None:
    if text.count("{") + text.count("[") <= MAX_DEPTH:  # most rows end here
        return
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [item for outer in level for item in _items(outer) if isinstance(item, (dict, list))]
    if level:
        raise RowFault(_TOO_DEEP)


def _items(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _check_text(row: Any) -> None:
    """Refuses half a surrogate pair, which JSON can write but UTF-8 cannot."""
    if not isinstance(row, dict):
        if fault := _first_text_fault(row):
            raise RowFault(f"its text {fault}")
        return
    for column, value in row.items():
        if fault := text_fault(column):
            raise RowFault(f"the column name {shown(column)} {fault}")
        if fault := _first_text_fault(value):
            raise RowFault(f"column {shown(column)} {fault}")


def _first_text_fault(value: Any) -> str | None:
    if isinstance(value, str):
        return text_fault(value)
    if isinstance(value, dict):
        faults = (text_fault(key) or _first_text_fault(item) for key, item in value.items())
        return next(filter(None, faults), None)
    if isinstance(value, list):
        return next(filter(None, map(_first_text_fault, value)), None)
    return None
