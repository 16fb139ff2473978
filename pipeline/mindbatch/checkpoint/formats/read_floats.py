"""Values of stored tensors as float32, read from their file into memory of their own.

A mapped file would end the process with SIGBUS when somebody truncates it; a read tells.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.formats.float_conversion import FLOAT_DTYPES, widen
from mindbatch.checkpoint.formats.float_rounding import FloatArray, array_type
from mindbatch.checkpoint.formats.stored import SLICE_BYTES, StoredTensor
from mindbatch.errors import CheckpointError


class ReadableTensors(Protocol):
    """An opened file, or several that are one checkpoint."""

    @property
    def path(self) -> Path: ...

    def info(self, name: str) -> StoredTensor: ...

    def read_into(self, name: str, start: int, buffer: memoryview) -> None: ...


def read_float32(tensors: ReadableTensors, name: str, rows: slice | None = None) -> FloatArray:
    """The values of an F32, F16 or BF16 tensor, or those of some rows.

    What is converted is read 4 MiB at a time: memory holds the values once.

    CheckpointError for another dtype, or when the file cannot be read any more; ValueError for `rows` outside
    the tensor or with a step.
    """
    info = tensors.info(name)
    if info.dtype not in FLOAT_DTYPES:
        raise CheckpointError(
            f"{tensors.path}: tensor {shown(name)}: dtype {info.dtype}; needed {', '.join(FLOAT_DTYPES)}"
        )
    first, shape = _rows_of(info, rows)
    values = np.empty(shape, np.float32)
    flat, start = values.reshape(-1), first * math.prod(shape[1:]) * info.itemsize
    if info.dtype == "F32":
        _fill(tensors, name, start, flat)
        return values
    stored = np.empty(min(flat.size, SLICE_BYTES // info.itemsize), array_type(info.dtype))
    for position in range(0, flat.size, SLICE_BYTES // info.itemsize):
        part = flat[position : position + stored.size]
        _fill(tensors, name, start + position * info.itemsize, stored[: part.size])
        widen(stored[: part.size], info.dtype, part)
    return values


def _rows_of(info: StoredTensor, rows: slice | None) -> tuple[int, tuple[int, ...]]:
    """The first of the rows, and the shape that they have together."""
    if rows is None:
        return 0, info.shape
    count = info.shape[0] if info.shape else 0
    start, stop = rows.start or 0, count if rows.stop is None else rows.stop
    if not info.shape or rows.step not in (None, 1) or not 0 <= start <= stop <= count:
        raise ValueError(f"rows {rows} of a tensor of shape {[*info.shape]}; must lie inside it, step 1")
    return start, (stop - start, *info.shape[1:])


def _fill(tensors: ReadableTensors, name: str, start: int, array: npt.NDArray[Any]) -> None:
    if array.size:  # nothing can be cast to bytes but what has some
        tensors.read_into(name, start, array.data.cast("B"))
