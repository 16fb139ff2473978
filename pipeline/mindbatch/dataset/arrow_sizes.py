"""Bytes that the cells of Arrow's columns take as JSON, by their offsets, before any is made a value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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
