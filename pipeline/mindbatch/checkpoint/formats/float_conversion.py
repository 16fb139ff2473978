"""Widening of checkpoint floats to float32, in slices bounded in size."""

import math
from collections.abc import Iterator
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt

FLOAT_DTYPES = ("F32", "F16", "BF16")
STORED_FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""How files call the dtypes that settings and config.json name."""

Index = tuple["int | slice | EllipsisType", ...]


def bounded_slices(shape: tuple[int, ...], max_elements: int) -> Iterator[Index]:
    """Indices that cut an array of `shape`, in C order, into views of at most `max_elements` (1 or more)."""
    row = math.prod(shape[1:])
    if not shape or shape[0] * row <= max_elements:
        yield (...,)
    elif row > max_elements:
        for position in range(shape[0]):
            for rest in bounded_slices(shape[1:], max_elements):
                yield (position, *rest)
    else:
        step = max_elements // row
        for start in range(0, shape[0], step):
            yield (slice(start, start + step),)


def widen(source: npt.NDArray[Any], dtype: str, out: npt.NDArray[np.float32]) -> None:
    """Writes `source` into `out` of the same shape, exactly; BF16 comes as uint16 bit patterns.

    A bfloat16 is the upper half of the float32 of the same value, so its bits are shifted into place. Neither
    branch makes a temporary array: NumPy converts in buffers of a few KiB.
    """
    if dtype == "BF16":
        np.left_shift(source, 16, out=out.view(np.uint32), dtype=np.uint32)
    else:
        np.copyto(out, source, casting="safe")
