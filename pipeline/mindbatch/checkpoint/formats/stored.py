"""What a stored tensor is, in whatever format: name, dtype, shape and the bytes of the file that hold it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mindbatch.checkpoint.faults import shown

DTYPES: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
"""Bytes of an element, by the name that safetensors gives the dtype."""

SLICE_BYTES = 4 << 20
"""What is read, hashed or converted at once."""

MAX_DIMENSIONS = 32  # NumPy's limit
MAX_NAME_LENGTH = 512
MAX_SIZE = 2**63 - 1


class Extent(NamedTuple):
    """Some consecutive bytes of a file."""

    offset: int
    nbytes: int


class TensorEntry(NamedTuple):
    """A tensor that is to be stored."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return math.prod(self.shape) * DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file: the extents one after another are its bytes, row-major and little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    extents: tuple[Extent, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return sum(extent.nbytes for extent in self.extents)


def byte_ranges(extents: Iterable[Extent], start: int, count: int) -> Iterator[Extent]:
    """Where the bytes start .. start + count of a tensor are in its file, in order.

    ValueError when the extents are shorter than that.
    """
    if start < 0 or count < 0:
        raise ValueError(f"bytes {start}, {count} of a tensor; must not be negative")
    for offset, nbytes in extents:
        if count and start < nbytes:
            taken = min(count, nbytes - start)
            yield Extent(offset + start, taken)
            start, count = 0, count - taken
        else:
            start -= min(start, nbytes)
    if count:
        raise ValueError(f"{count} bytes beyond the end of the tensor")


def name_faults(name: str) -> list[str]:
    """A name is printed and may become part of a path later: nothing unprintable and nothing that moves."""
    if not name or len(name) > MAX_NAME_LENGTH:
        return [f"a name must have 1 to {MAX_NAME_LENGTH} characters"]
    if not name.isprintable() or ".." in name or "/" in name or "\\" in name:
        return ["a name must be printable, without '..', '/' or '\\'"]
    return []


def dtype_faults(dtype: object) -> list[str]:
    """Whether it is the name of a known dtype."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return []
    return [f"dtype {shown(dtype)} is unknown; known are {', '.join(DTYPES)}"]


def shape_faults(shape: list[int], itemsize: int) -> list[str]:
    """Whether the sizes are none negative, and neither too many nor too large."""
    if len(shape) > MAX_DIMENSIONS or any(not 0 <= size <= MAX_SIZE for size in shape):
        return [f"shape {shown(shape)} must be at most {MAX_DIMENSIONS} integers, none negative or huge"]
    # Zeros are left out here: NumPy cannot shape [0, 2**62, 2**62] though it has no element.
    if math.prod(size or 1 for size in shape) * itemsize > MAX_SIZE:
        return [f"shape {shown(shape)} is too large"]
    return []
