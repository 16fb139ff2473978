"""Owns what the cells of Arrow's columns are as values of JSON, and why some are none."""

from __future__ import annotations

import datetime
import math
import uuid
from collections.abc import Iterator
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow

Sizes = NDArray[np.int64] | int
"""Sizes of the cells, one for each or one for all of them alike."""
_NULL = 1


def cell_sizes(column: pyarrow.Array) -> NDArray[np.int64]:
    """For each cell a number of bytes that it takes at least; what is binary counts as if it were text.

    Raises:
        IndexError: a cell is beyond the dictionary of its column.
    """
    return np.broadcast_to(np.asarray(_sizes(column), np.int64), len(column))


def portions(sizes: NDArray[np.int64], most: int) -> Iterator[slice]:
    """The rows of these sizes in consecutive slices of `most` bytes at most, or of a single row."""
    start = total = 0
    for row, size in enumerate(sizes.tolist()):
        total += size
        if total > most and row > start:
            yield slice(start, row)
            start, total = row, size
    if start < len(sizes):
        yield slice(start, len(sizes))


def _sizes(column: pyarrow.Array) -> Sizes:
    sizes = _sizes_but_of_nulls(column)
    if column.null_count == 0 or (isinstance(sizes, int) and sizes <= _NULL):
        return sizes
    return np.where(column.is_null().to_numpy(zero_copy_only=False), _NULL, sizes)


def _sizes_but_of_nulls(column: pyarrow.Array) -> Sizes:
    """A list or struct is as large as what it holds, with a bracket and a comma or so for each."""
    import pyarrow
    from pyarrow import types

    kind = column.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _sizes(column.storage)
    if types.is_dictionary(kind):
        return _of_dictionary(column)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        views = np.frombuffer(column.buffers()[1], np.int32)  # the length, and 12 bytes more
        return views[4 * column.offset :: 4][: len(column)].astype(np.int64) + 1
    if types.is_struct(kind):
        return sum((_sizes(column.field(number)) for number in range(kind.num_fields)), start=2)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        starts = column.offsets.to_numpy()
        return _between(column.values, starts, starts + column.sizes.to_numpy())
    if types.is_fixed_size_list(kind):
        starts = np.arange(column.offset, column.offset + len(column) + 1) * kind.list_size
        return _between(column.values, starts[:-1], starts[1:])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        offsets = column.offsets.to_numpy()
        return _between(column.values, offsets[:-1], offsets[1:])
    return _lengths(column)


def _of_dictionary(column: pyarrow.DictionaryArray) -> Sizes:
    """Indices beyond the dictionary, which a damaged file may hold, would be read from anywhere in memory."""
    entries = cell_sizes(column.dictionary)
    indices = np.asarray(column.indices.drop_null())
    if len(indices) and not 0 <= indices.min() <= indices.max() < len(entries):
        raise IndexError("a cell's index is beyond the texts of its column")
    return entries[column.indices.fill_null(0)] if len(entries) else _NULL


def _lengths(column: pyarrow.Array) -> Sizes:
    import pyarrow.compute
    from pyarrow import types

    kind = column.type
    if types.is_fixed_size_binary(kind) and not types.is_decimal(kind):
        return int(kind.byte_width) + 1
    checks = (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
    if not any(check(kind) for check in checks):
        return 1
    lengths = pyarrow.compute.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(lengths, np.int64) + 1


def _between(items: pyarrow.Array, starts: NDArray[Any], stops: NDArray[Any]) -> Sizes:
    """For each list the bytes of its items, those from its start up to its stop."""
    sizes = _sizes(items)
    if isinstance(sizes, int):
        return np.asarray(stops - starts, np.int64) * (sizes + 1) + 1
    upto = np.concatenate(([0], np.cumsum(sizes + 1)))
    return np.asarray(upto[stops] - upto[starts] + 1, np.int64)


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


BINARY = Unusable(_BINARY)


class _NotJson(ValueError):
    """The reason why a value has no place in JSON."""


def column_values(column: pyarrow.Array) -> list[Any]:
    """The value of each cell as JSON has it, or an `Unusable`."""
    import pyarrow

    if _is_binary(column.type):
        return [None if is_null else BINARY for is_null in column.is_null().to_pylist()]
    try:
        values = column.to_pylist()
    except _CONVERSION_FAULTS:
        values = [_converted(cell) for cell in column]
    if pyarrow.types.is_string(column.type) or pyarrow.types.is_integer(column.type):
        return cast(list[Any], values)
    return [usable(value) for value in values]


def holds_binary(kind: pyarrow.DataType) -> bool:
    """True if values of the type hold bytes that are no text, at any depth."""
    import pyarrow

    if pyarrow.types.is_dictionary(kind):
        return holds_binary(kind.value_type)
    return _is_binary(kind) or any(holds_binary(kind.field(place).type) for place in range(kind.num_fields))


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
