"""Stored tensors of any format: their entries and extents, a file to be written, and the opened file."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeGuard

from mindbatch.checkpoint.error_lines import did_you_mean, shown
from mindbatch.io.closing import Closing
from mindbatch.io.errors import CheckpointError
from mindbatch.io.regular_file import open_regular

DTYPES: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
"""Bytes of an element, by the name that safetensors gives the dtype."""

SLICE_BYTES = 4 << 20
"""Number of bytes read, hashed or converted at once."""

MAX_DIMENSIONS = 32  # NumPy's limit
MAX_NAME_LENGTH = 512
MAX_SIZE = 2**63 - 1


class ByteExtent(NamedTuple):
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file: the extents one after another are its bytes, row-major and little-endian.

    Only those of a `StridedFile` may be in another order. A tensor that is no file's, or not yet, has none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    extents: tuple[ByteExtent, ...] = ()

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class FileLayout:
    """A file of `total_bytes`: the parts of `head` at their offsets, and each tensor's bytes at its extents.

    Head and extents cover the file exactly once, so that they may be written in any order, by any number of
    processes.
    """

    total_bytes: int
    head: Sequence[tuple[int, bytes]]
    extents: Mapping[str, tuple[ByteExtent, ...]]

    @property
    def head_digest(self) -> str:
        """The hex SHA-256 of the head, as digests.json has it (see `StoredFile.head_digest`)."""
        digest = hashlib.sha256()
        for _, data in sorted(self.head):
            digest.update(data)
        return digest.hexdigest()


def byte_ranges(extents: Iterable[ByteExtent], start: int, count: int) -> Iterator[ByteExtent]:
    """File extents of the bytes start .. start + count of a tensor, in order.

    ValueError when the extents are shorter than that.
    """
    if start < 0 or count < 0:
        raise ValueError(f"bytes {start}, {count} of a tensor; must not be negative")
    for offset, nbytes in extents:
        if count and start < nbytes:
            taken = min(count, nbytes - start)
            yield ByteExtent(offset + start, taken)
            start, count = 0, count - taken
        else:
            start -= min(start, nbytes)
    if count:
        raise ValueError(f"{count} bytes beyond the end of the tensor")


def name_errors(name: str) -> list[str]:
    """A name is printed and may become part of a path later: nothing unprintable and nothing that moves."""
    if not name or len(name) > MAX_NAME_LENGTH:
        return [f"a name must have 1 to {MAX_NAME_LENGTH} characters"]
    if not name.isprintable() or ".." in name or "/" in name or "\\" in name:
        return ["a name must be printable, without '..', '/' or '\\'"]
    return []


def dtype_errors(dtype: object) -> list[str]:
    if isinstance(dtype, str) and dtype in DTYPES:
        return []
    return [f"dtype {shown(dtype)} is unknown; known are {', '.join(DTYPES)}"]


def are_sizes(value: object) -> TypeGuard[list[int]]:
    """True for a list of integers (not of booleans) from 0 up to the largest signed 64-bit one."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= MAX_SIZE for item in value)


def shape_errors(shape: object, itemsize: int) -> list[str]:
    """Checks that it is a list of sizes, which are neither too many nor too large."""
    if not are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        return [f"shape {shown(shape)} must be at most {MAX_DIMENSIONS} integers, none negative or huge"]
    # Zeros are left out here: NumPy cannot shape [0, 2**62, 2**62] though it has no element.
    if math.prod(size or 1 for size in shape) * itemsize > MAX_SIZE:
        return [f"shape {shown(shape)} is too large"]
    return []


def entry_errors(tensors: Iterable[StoredTensor]) -> list[str]:
    errors, seen = [], set[str]()
    for tensor in tensors:
        tensor_errors = name_errors(tensor.name)
        if tensor.name in seen:
            tensor_errors.append("is there twice")
        tensor_errors += dtype_errors(tensor.dtype) or shape_errors([*tensor.shape], tensor.itemsize)
        errors += [f"tensor {shown(tensor.name)}: {error}" for error in tensor_errors]
        seen.add(tensor.name)
    return errors


class ReadableFile(Closing):
    """A regular file, read at positions. CheckpointError when it cannot be opened or read, or is empty.

    stamp: its size, and its time of change (in nanoseconds), when it was opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        try:
            self._file = open_regular(path)
        except FileNotFoundError:
            raise CheckpointError(f"{path}: missing") from None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
        status = os.fstat(self._file)
        self.size, self.stamp = status.st_size, (status.st_size, status.st_mtime_ns)
        if not self.size:
            self.close()
            raise CheckpointError(f"{path}: empty; must be a complete file of tensors")

    def fileno(self) -> int:
        return self._file

    def fetch(self, offset: int, count: int) -> bytes:
        """At most `count` bytes from `offset` on; fewer only at the end of the file."""
        data = bytearray(max(0, min(count, self.size - offset)))
        self.fill(offset, memoryview(data))
        return bytes(data)

    def fill(self, offset: int, buffer: memoryview) -> None:
        rest = buffer.cast("B")
        while rest:
            try:
                count = os.preadv(self._file, [rest], offset)
            except OSError as error:
                raise CheckpointError(f"{self.path}: cannot be read ({error.strerror})") from error
            if count == 0:
                raise CheckpointError(f"{self.path}: became shorter while it was read, at byte {offset}")
            rest, offset = rest[count:], offset + count

    def close(self) -> None:
        """Closes the file; closing twice is no error."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()


class StoredFile(ReadableFile):
    """An opened file of tensors, in file order; all but their contents has been read and checked.

    kind: safetensors, ckpt or pytorch, whose reader fills the rest in.
    texts: the strings that a .ckpt holds besides tensors, by name.
    crc: the end and the value of the CRC-32 that a .ckpt may carry: it covers all bytes before the end.
    """

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(path)
        self.kind = kind
        self.tensors: Mapping[str, StoredTensor] = {}
        self.texts: Mapping[str, str] = {}
        self.crc: tuple[int, int] | None = None

    def info(self, name: str) -> StoredTensor:
        """The tensor's entry. CheckpointError when there is none of that name."""
        try:
            return self.tensors[name]
        except KeyError:
            near = did_you_mean(name, self.tensors)
            raise CheckpointError(f"{self.path}: no tensor {shown(name)}{near}") from None

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Fills `buffer` with the tensor's bytes from `start` on; threads and processes may share the file.

        CheckpointError when the file cannot be read any more, ValueError beyond the end of the tensor.
        """
        flat = buffer.cast("B")
        filled = 0
        for offset, nbytes in byte_ranges(self.info(name).extents, start, len(flat)):
            self.fill(offset, flat[filled : filled + nbytes])
            filled += nbytes

    def chunks(self, name: str) -> Iterator[memoryview]:
        """Yields the tensor's bytes in chunks of at most 4 MiB, each valid until the next one is read."""
        total = self.info(name).nbytes
        buffer = memoryview(bytearray(min(SLICE_BYTES, total)))
        for start in range(0, total, SLICE_BYTES):
            chunk = buffer[: min(SLICE_BYTES, total - start)]
            self.read_into(name, start, chunk)
            yield chunk

    def has_bytes_of(self, name: str, other: StoredFile, other_name: str) -> bool:
        """True if a tensor has the same bytes as one of equal size in the other file."""
        chunks = zip(self.chunks(name), other.chunks(other_name), strict=True)
        return all(part == copy for part, copy in chunks)

    def byte_chunks(self, start: int, end: int) -> Iterator[bytes]:
        """Yields the file's bytes from `start` to `end` in chunks of at most 4 MiB."""
        for offset in range(start, end, SLICE_BYTES):
            yield self.fetch(offset, min(SLICE_BYTES, end - offset))

    def head_digest(self) -> str:
        """The hex SHA-256 of all bytes of the file outside tensor data, in order."""
        digest = hashlib.sha256()
        position = 0
        for offset, nbytes in sorted(e for tensor in self.tensors.values() for e in tensor.extents):
            for chunk in self.byte_chunks(position, offset):
                digest.update(chunk)
            position = max(position, offset + nbytes)  # tensors of a pytorch file may share bytes
        for chunk in self.byte_chunks(position, self.size):
            digest.update(chunk)
        return digest.hexdigest()
