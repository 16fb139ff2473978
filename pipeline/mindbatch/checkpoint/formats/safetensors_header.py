"""The safetensors header: parsing and checking, before any of its numbers is used.

Format (https://huggingface.co/docs/safetensors, "Format"): 8 bytes, the header length N as unsigned
little-endian; N bytes of UTF-8 JSON beginning with `{`, which may be padded with spaces at the end; then the
data, which the tensors' byte ranges cover without overlap and without gaps, little-endian and in C order.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.formats.stored import (
    DTYPES,
    MAX_DIMENSIONS,
    MAX_SIZE,
    dtype_faults,
    name_faults,
    shape_faults,
)
from mindbatch.checkpoint.json_object import parse_json_object
from mindbatch.errors import CheckpointError
from mindbatch.foreign_formats import foreign_format

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 32_000_000
"""safetensors itself allows 100 MB; 125,000 tensors, which is what MAX_PARTS allows, take 20."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: `dtype` as safetensors spells it, `start` and `end` in bytes of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of data in the file."""
        return self.end - self.start


def header_length(prefix: bytes, file_bytes: int, where: str) -> int:
    """The header length N from the first bytes of a file. CheckpointError when it cannot be true."""
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if len(prefix) < LENGTH_BYTES:
        fault = f"truncated: {file_bytes} bytes, too short for a safetensors header"
    elif length > MAX_HEADER_BYTES:
        fault = f"header length {length}; at most {MAX_HEADER_BYTES} bytes are allowed"
    elif length > file_bytes - LENGTH_BYTES:
        fault = f"truncated: the header needs {LENGTH_BYTES + length} bytes, the file has {file_bytes}"
    else:
        return length
    raise CheckpointError(f"{where}: {foreign_format(prefix) or fault}; must be a complete safetensors file")


def parse_header(header: bytes, file_bytes: int, where: str) -> dict[str, TensorInfo]:
    """The tensors of a file, in the order of their data. CheckpointError lists what is wrong."""
    if not header.startswith(b"{"):
        raise CheckpointError(
            f"{where}: the safetensors header must begin with '{{', found {shown(header[:8])}"
        )
    entries = parse_json_object(header, f"{where}: header")
    faults = _metadata_faults(entries.pop("__metadata__", {}))
    origin = LENGTH_BYTES + len(header)
    tensors: list[TensorInfo] = []
    for name, entry in entries.items():
        entry_faults = name_faults(name) or _entry_faults(entry)
        if entry_faults:
            faults += [f"tensor {shown(name)}: {fault}" for fault in entry_faults]
        else:
            begin, end = entry["data_offsets"]
            tensors.append(
                TensorInfo(name, entry["dtype"], tuple(entry["shape"]), origin + begin, origin + end)
            )
    tensors.sort(key=lambda info: (info.start, info.end))
    # Gaps around an entry that could not be read would only be noise.
    faults = faults or _layout_faults(tensors, origin, file_bytes)
    raise_if_any(faults, where)
    return {info.name: info for info in tensors}


def _metadata_faults(metadata: object) -> list[str]:
    if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
        return []
    return ["__metadata__ must be an object of strings"]


def _entry_faults(entry: Any) -> list[str]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        return ["must have exactly the keys dtype, shape, data_offsets"]
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    faults = dtype_faults(dtype)
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        faults.append(
            f"shape {shown(shape)} must be at most {MAX_DIMENSIONS} integers, none negative or huge"
        )
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        faults.append(f"data_offsets {shown(offsets)} must be two integers [begin, end] with begin <= end")
    return faults or _size_faults(dtype, shape, offsets)


def _are_sizes(value: object) -> bool:
    """Whether it is a list of integers (not of booleans) from 0 up to the largest signed 64-bit one."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= MAX_SIZE for item in value)


def _size_faults(dtype: str, shape: list[int], offsets: list[int]) -> list[str]:
    if faults := shape_faults(shape, DTYPES[dtype]):
        return faults
    needed, found = math.prod(shape) * DTYPES[dtype], offsets[1] - offsets[0]
    if needed == found:
        return []
    return [f"shape {shown(shape)} of {dtype} needs {needed} bytes, its data_offsets {offsets} hold {found}"]


def _layout_faults(tensors: Iterable[TensorInfo], origin: int, file_bytes: int) -> list[str]:
    """Whether the sorted byte ranges follow each other from `origin` to the end of the file."""
    faults, position, previous = [], origin, "the header"
    for info in tensors:
        if info.start != position:
            what = (
                "overlaps"
                if info.start < position
                else f"leaves a gap of {info.start - position} bytes after"
            )
            faults.append(f"tensor {shown(info.name)} {what} {previous}")
        if info.end > file_bytes:
            faults.append(f"truncated: tensor {shown(info.name)} ends at byte {info.end} of {file_bytes}")
        position, previous = max(position, info.end), f"tensor {shown(info.name)}"
    if position < file_bytes:
        faults.append(f"{file_bytes - position} bytes after the last tensor belong to no tensor")
    return faults
