"""Owns what the cells of Arrow's columns are as values of JSON, and why some are none."""

from __future__ import annotations

import datetime
import math
import uuid
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    import pyarrow

_BINARY = "holds binary data; must be text"
_REFUSED = {
    bytes: _BINARY,
    datetime.timedelta: "holds a duration; must be a number or text",
}
_CONVERSION_FAULTS = (ValueError, KeyError, OverflowError, OSError)
"""Bad UTF-8, an unknown zone, a year past 9999, a zone that is a folder of zones."""


class Unusable(NamedTuple):
    """Stands for a value that JSON does not know."""

    reason: str


class _NotJson(ValueError):
    """The reason why a value has no place in JSON."""


def column_values(column: pyarrow.Array) -> list[Any]:
    """The value of each cell as JSON has it, or an `Unusable`."""
    import pyarrow

    if _is_binary(column.type):
        return [None if is_null else Unusable(_BINARY) for is_null in column.is_null().to_pylist()]
    try:
        values = column.to_pylist()
    except _CONVERSION_FAULTS:
        values = [_converted(cell) for cell in column]
    if pyarrow.types.is_string(column.type) or pyarrow.types.is_integer(column.type):
        return cast(list[Any], values)
    return [usable(value) for value in values]


def usable(value: Any) -> Any:
    """The value as JSON knows it: dates and times as ISO 8601 text, decimal numbers and UUIDs as text; an
    `Unusable` where JSON knows none."""
    try:
        return _json_value(value)
    except _NotJson as fault:
        return Unusable(str(fault))


def split(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A row's columns that can be used, and by name why the others cannot."""
    unusable = {column: value.reason for column, value in row.items() if isinstance(value, Unusable)}
    if not unusable:
        return row, {}
    return {column: value for column, value in row.items() if column not in unusable}, unusable


def _is_binary(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    checks = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(check(kind) for check in checks) and not types.is_decimal(kind)


def _converted(cell: pyarrow.Scalar) -> Any:
    """The Python value of one cell; not UTF-8, an unknown time zone and the like make it unusable."""
    try:
        return cell.as_py()
    except _CONVERSION_FAULTS as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return Unusable(f"cannot be read as {cell.type} ({reason})")


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int, Unusable)):
        return value
    if isinstance(value, Real):
        return _finite(float(value))
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (Decimal, uuid.UUID)):
        return str(value)
    raise _NotJson(
        _REFUSED.get(type(value), f"holds a {type(value).__name__}; give text, numbers, lists or structs")
    )


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise _NotJson(f"{number} is no number of JSON")
    return number
