"""Stored elements as arrays; between float32, float16 and bfloat16, each rounded once, ties to even."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mindbatch.checkpoint.formats.float_conversion import FLOAT_DTYPES, widen
from mindbatch.checkpoint.formats.stored import DTYPES

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_FLOATS = {"F32": np.float32, "F16": np.float16}
_QUIET = np.uint32(0x0040)


def array_type(dtype: str) -> Any:
    """The NumPy type in which elements of a stored dtype are moved: its bits where NumPy has none."""
    return _FLOATS.get(dtype, _BITS[DTYPES[dtype]])


def widened(data: memoryview | bytes | bytearray, dtype: str, shape: tuple[int, ...]) -> FloatArray:
    """Stored bytes of FLOAT_DTYPES as float32; for F32 the very same memory.

    Raises:
        ValueError: another dtype, or bytes that are not of the shape.
    """
    if dtype not in FLOAT_DTYPES:
        raise ValueError(f"dtype {dtype}; must be one of {', '.join(FLOAT_DTYPES)}")
    stored = np.frombuffer(data, array_type(dtype)).reshape(shape)
    if dtype == "F32":
        return stored
    values = np.empty(shape, np.float32)
    widen(stored, dtype, values)
    return values


def is_converted(source: str, target: str) -> bool:
    """Whether elements change between the dtypes; ValueError when there is no way between them."""
    if source == target:
        return False
    if source not in FLOAT_DTYPES or target not in FLOAT_DTYPES:
        raise ValueError(f"{source} does not become {target}; converted are {', '.join(FLOAT_DTYPES)}")
    return True


def converted(values: Array, source: str, target: str) -> tuple[Array, int]:
    """The values in the target's dtype, and how many finite ones have become infinite.

    values: as `array_type` of the source has them.
    """
    if not is_converted(source, target):
        return values, 0
    wide = values
    if source != "F32":
        wide = np.empty(values.shape, np.float32)
        widen(values, source, wide)
    if target == "F32":
        return wide, 0
    if target == "BF16":
        found = _bfloat16(wide)
        return found, int(np.count_nonzero(found & 0x7FFF == 0x7F80)) - _infinities(wide)
    with np.errstate(over="ignore", invalid="ignore"):
        half = wide.astype(np.float16)
    return half, _infinities(half) - _infinities(wide)


def _bfloat16(wide: Array) -> Array:
    """The upper halves after rounding: half of the last place is added, less one bit where that is even.

    A NaN keeps its upper half and is made quiet, lest nothing but the lower half had made it one.
    """
    bits = np.ascontiguousarray(wide).view(np.uint32)
    kept = bits >> 16
    rounded = (bits + (np.uint32(0x7FFF) + (kept & 1))) >> 16
    is_nan = np.isnan(wide)
    if is_nan.any():
        rounded[is_nan] = kept[is_nan] | _QUIET
    return rounded.astype(np.uint16)


def _infinities(values: Array) -> int:
    return int(np.count_nonzero(np.isinf(values)))
