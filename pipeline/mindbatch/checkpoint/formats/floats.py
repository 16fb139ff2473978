"""Floats of tensors: read as float32; between float32, float16 and bfloat16, rounded once, ties to even."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mindbatch.checkpoint.error_lines import shown
from mindbatch.checkpoint.formats.stored import DTYPES, SLICE_BYTES, StoredFile, StoredTensor
from mindbatch.io.errors import CheckpointError

FLOAT_DTYPES = ("F32", "F16", "BF16")
STORED_FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""How files call the dtypes that settings and config.json name."""

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]

GAP_BYTES = 32 << 10
"""Bytes between parts that are wanted which take less time than another call of the system."""

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_FLOATS = {"F32": np.float32, "F16": np.float16}
_QUIET = np.uint32(0x0040)


def array_type(dtype: str) -> Any:
    """The NumPy type in which elements of a stored dtype are moved: its bits where NumPy has none."""
    return _FLOATS.get(dtype, _BITS[DTYPES[dtype]])


def widen(source: Array, dtype: str, out: FloatArray) -> None:
    """Writes `source` into `out` of the same shape, exactly; BF16 comes as uint16 bit patterns.

    A bfloat16 is the upper half of the float32 of the same value, so its bits are shifted there. Neither
    branch makes a temporary array: NumPy converts in buffers of a few KiB.
    """
    if dtype == "BF16":
        np.left_shift(source, 16, out=out.view(np.uint32), dtype=np.uint32)
    else:
        np.copyto(out, source, casting="safe")


def widened(data: memoryview | bytes | bytearray, dtype: str, shape: tuple[int, ...]) -> FloatArray:
    """Stored bytes of FLOAT_DTYPES as float32; for F32 the very same memory.

    Raises:
        ValueError: another dtype, or bytes that are not of the shape.
    """
    if dtype not in FLOAT_DTYPES:
        raise ValueError(f"dtype {dtype}; must be one of {', '.join(FLOAT_DTYPES)}")
    values: FloatArray = converted(np.frombuffer(data, array_type(dtype)).reshape(shape), dtype, "F32")[0]
    return values


def is_converted(source: str, target: str) -> bool:
    """True if elements change between the dtypes; ValueError if no conversion exists."""
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
        values_16 = _bfloat16(wide)
        return values_16, int(np.count_nonzero(values_16 & 0x7FFF == 0x7F80)) - _infinities(wide)
    with np.errstate(over="ignore", invalid="ignore"):
        half = wide.astype(np.float16)
    return half, _infinities(half) - _infinities(wide)


def _bfloat16(wide: Array) -> Array:
    """The upper halves after rounding: half of the last digit is added, less one bit where that is even.

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


def have_equal_floats(one: tuple[StoredFile, str], other: tuple[StoredFile, str]) -> bool:
    """True if two tensors, each with its file, are of FLOAT_DTYPES and have the same numbers."""
    if not {file.info(name).dtype for file, name in (one, other)} <= {*FLOAT_DTYPES}:
        return False
    return np.array_equal(read_values(*one), read_values(*other))


def read_region(
    file: StoredFile,
    name: str,
    region: Sequence[tuple[int, int]],
    view: tuple[int, ...],
    *,
    is_widened: bool,
) -> Array:
    """Reads a region of a tensor as `read_values` does.

    region: (start, stop) of each dimension of `view`, a shape of the same bytes.
    """
    parts = [slice(*bounds) for bounds in region]
    if len(parts) == 2:
        return read_values(file, name, parts[0], parts[1], is_widened=is_widened, view=view)
    values = read_values(file, name, parts[0] if parts else None, None, is_widened=is_widened, view=view)
    if len(parts) < 2:
        return values
    index = (slice(None), *parts[1:])
    return values[index]


def read_values(
    file: StoredFile,
    name: str,
    rows: slice | None = None,
    columns: slice | None = None,
    *,
    is_widened: bool = True,
    view: tuple[int, ...] | None = None,
) -> Array:
    """The values of an F32, F16 or BF16 tensor, or those of some rows and columns, in memory of their own.

    What is converted is read 4 MiB at a time: memory holds the values once. (A mapped file would end the
    process with SIGBUS when somebody truncates it; a read tells.)

    is_widened: as float32; else as `array_type` has those of the dtype. view: a shape of the same bytes, by
    which rows and columns are counted. With `columns`, a stack of matrices is read as one, each below the
    other.

    CheckpointError for another dtype, or when the file cannot be read any more; ValueError for `rows` or
    `columns` outside the tensor or with a step, or `columns` of what is no matrix.
    """
    info = file.info(name)
    if view is not None:
        info = replace(info, shape=view)
    if info.dtype not in FLOAT_DTYPES:
        raise CheckpointError(
            f"{file.path}: tensor {shown(name)}: dtype {info.dtype}; needed {', '.join(FLOAT_DTYPES)}"
        )
    if columns is not None and len(info.shape) > 2:
        info = replace(info, shape=(math.prod(info.shape[:-1]), info.shape[-1]))
    first, shape = 0, info.shape
    if rows is not None:
        (within,) = bounded(shape, rows)
        first, shape = within.start, (within.stop - within.start, *shape[1:])
    dtype = np.float32 if is_widened else array_type(info.dtype)
    if columns is not None:
        _, within = bounded(info.shape, None, columns)
        if within != slice(0, info.shape[1]):
            return _read_columns(file, info, range(first, first + shape[0]), within, dtype)
    values = np.empty(shape, dtype)
    flat, start = values.reshape(-1), first * math.prod(shape[1:]) * info.itemsize
    if dtype == array_type(info.dtype):
        _fill(file, name, start, flat)
        return values
    stored = np.empty(min(flat.size, SLICE_BYTES // info.itemsize), array_type(info.dtype))
    for position in range(0, flat.size, SLICE_BYTES // info.itemsize):
        part = flat[position : position + stored.size]
        _fill(file, name, start + position * info.itemsize, stored[: part.size])
        widen(stored[: part.size], info.dtype, part)
    return values


def bounded(shape: tuple[int, ...], *parts: slice | None) -> tuple[slice, ...]:
    """Some rows, or some rows and columns, with both bounds; None for all of them.

    ValueError outside a tensor of this shape, or with a step.
    """
    bounds = []
    for axis, part in enumerate(parts):
        size = shape[axis] if axis < len(shape) else -1
        part = part or slice(None)
        start, stop = part.start or 0, size if part.stop is None else part.stop
        if part.step not in (None, 1) or not 0 <= start <= stop <= size:
            which = ("rows", "columns")[axis]
            raise ValueError(f"{which} {part} of a tensor of shape {[*shape]}; must lie inside it, step 1")
        bounds.append(slice(start, stop))
    return (*bounds,)


def _read_columns(file: StoredFile, info: StoredTensor, rows: range, columns: slice, dtype: Any) -> Array:
    """Some columns of some rows of a matrix: what lies between them is read, too, where that is little."""
    left, width = columns.start, info.shape[1]
    count = columns.stop - left
    values = np.empty((len(rows), count), dtype)
    is_near = (width - count) * info.itemsize <= GAP_BYTES
    step = max(1, SLICE_BYTES // (width * info.itemsize)) if is_near else 1
    stored = np.empty((min(step, len(rows)), width), array_type(info.dtype))
    for at in range(0, len(rows), step):
        part = values[at : at + step]
        between = stored.reshape(-1)[: (len(part) - 1) * width + count]
        _fill(file, info.name, ((rows[0] + at) * width + left) * info.itemsize, between)
        if stored.dtype == part.dtype:
            part[...] = stored[: len(part), :count]
        else:
            widen(stored[: len(part), :count], info.dtype, part)
    return values


def _fill(file: StoredFile, name: str, start: int, array: Array) -> None:
    if array.size:  # nothing can be cast to bytes but what has some
        file.read_into(name, start, array.data.cast("B"))
