"""llama.cpp's files: opened strictly, metadata and descriptions of tensors checked before anything is used.

Format, little-endian, versions 2 and 3: "GGUF", version, numbers of tensors and of keys; keys with typed
values; of each tensor name, sizes from the innermost on, type and offset; then, aligned, the data, in order.

Source: ggml's description of the format.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mindbatch.checkpoint.error_lines import raise_if_any, shown
from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.formats.ggml_types import BLOCK_TYPES, PLAIN_TYPES, UNREAD_TYPES, BlockType
from mindbatch.checkpoint.formats.stored import (
    DTYPES,
    MAX_SIZE,
    ByteExtent,
    StoredFile,
    StoredTensor,
    entry_errors,
)
from mindbatch.io.closing import closed_on_error
from mindbatch.io.errors import CheckpointError

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_HEAD = 256 << 20
_MAX_TENSORS, _MAX_KEYS, _MAX_DIMENSIONS = 200_000, 10_000, 4
_MAX_KEY, _MAX_TEXT = 1 << 10, 16 << 20
_ALIGNMENT, _MAX_ALIGNMENT = 32, 1 << 16
_FIRST_READ = 1 << 16
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_TEXT, _ARRAY = 8, 9


class Texts(NamedTuple):
    """An array of `size` texts, as its bytes: few who open a file read them."""

    data: bytes
    size: int

    def decoded(self) -> list[str]:
        """CheckpointError for texts that are no UTF-8."""
        texts, position = [], 0
        try:
            for _ in range(self.size):
                length = int.from_bytes(self.data[position : position + 8], "little")
                texts.append(self.data[position + 8 : position + 8 + length].decode())
                position += 8 + length
        except UnicodeDecodeError as error:
            raise CheckpointError(f"text {len(texts)} of {self.size} is no UTF-8") from error
        return texts


class GgufFile(StoredFile):
    """An opened file. The tensors of blocks are matrices of bytes.

    metadata: values by key; of arrays NumPy's, or `Texts`.
    blocks: by the names of tensors that are of blocks, their type.
    shapes: by their names, the shape that they stand for.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "gguf")
        self.metadata: Mapping[str, Any] = {}
        self.blocks: dict[str, BlockType] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}


def open_gguf(path: Path) -> GgufFile:
    """Opens and checks a file without reading its tensors. CheckpointError lists the errors."""
    file = GgufFile(path)
    with closed_on_error(file):
        head = _Head(file)
        if (magic := head.take(4)) != MAGIC:
            raise CheckpointError(f"{path}: begins with {shown(magic)}; must be a file of llama.cpp (GGUF)")
        version = head.number("<I")
        if version not in _VERSIONS:
            raise CheckpointError(
                f"{path}: version {version} of GGUF; must be {' or '.join(map(str, _VERSIONS))}"
            )
        tensors, keys = head.count("tensors", _MAX_TENSORS), head.count("keys", _MAX_KEYS)
        file.metadata = dict(_keys(head, keys))
        _add_tensors(file, head, tensors)
    return file


class _Head:
    """Reads the head of a file from its beginning on, in memory that is bounded by what the file has."""

    def __init__(self, file: GgufFile) -> None:
        self.file, self.position = file, 0
        self._data = file.fetch(0, _FIRST_READ)

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.file.path}: byte {self.position}: {problem}")

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self._data):
            if end > self.file.size:
                raise self.error(f"truncated: {count} bytes are needed, the file has {self.file.size}")
            if end > _MAX_HEAD:
                raise self.error(f"what is before the tensors has more than {_MAX_HEAD} bytes")
            self._data = self.file.fetch(0, min(max(end, 2 * len(self._data)), _MAX_HEAD))
        taken, self.position = self._data[self.position : end], end
        return taken

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, noun: str, largest: int) -> int:
        count: int = self.number("<Q")
        if count > largest:
            raise self.error(f"{count} {noun}; at most {largest} are allowed")
        return count

    def text(self, largest: int) -> str:
        data = self.take(self.count("bytes of a text", largest))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.error(f"{shown(data)} is no UTF-8") from None

    def texts(self, count: int) -> Texts:
        first = position = self.position
        for _ in range(count):
            if position + 8 > len(self._data):
                self.take(position + 8 - self.position)  # reads on
                self.position = first
            length = int.from_bytes(self._data[position : position + 8], "little")
            if length > _MAX_TEXT:
                raise self.error(f"a text of {length} bytes; at most {_MAX_TEXT} are allowed")
            position += 8 + length
        return Texts(self.take(position - first), count)


def _keys(head: _Head, count: int) -> Iterator[tuple[str, Any]]:
    seen = set[str]()
    for _ in range(count):
        key = head.text(_MAX_KEY)
        if key in seen:
            raise head.error(f"key {shown(key)} is there twice")
        seen.add(key)
        yield key, _value(head, head.number("<I"))


def _value(head: _Head, kind: int) -> Any:
    if kind == _TEXT:
        return head.text(_MAX_TEXT)
    if kind in _NUMBERS:
        return _numbers(head, kind, 1)[0].item()
    if kind != _ARRAY:
        raise head.error(f"type {kind} of a value; known are 0 to 12")
    inner = head.number("<I")
    if inner != _TEXT and inner not in _NUMBERS:
        raise head.error(f"an array of type {inner}; must be of numbers or texts")
    count = head.count("entries of an array", head.file.size)
    return head.texts(count) if inner == _TEXT else _numbers(head, inner, count)


def _numbers(head: _Head, kind: int, count: int) -> Array:
    dtype = np.dtype(_NUMBERS[kind])
    if kind == 7:
        values = np.frombuffer(head.take(count), np.uint8)
        if values.max(initial=0) > 1:
            raise head.error(f"{values.max()} as a truth value; must be 0 or 1")
        return values.astype(bool)
    return np.frombuffer(head.take(count * dtype.itemsize), dtype)


def _add_tensors(file: GgufFile, head: _Head, count: int) -> None:
    """Reads the descriptions of tensors. CheckpointError lists what is wrong with them."""
    entries = [_entry(head) for _ in range(count)]
    alignment = file.metadata.get("general.alignment", _ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise CheckpointError(
            f"{file.path}: general.alignment={shown(alignment)}: must be a power of two, at most "
            f"{_MAX_ALIGNMENT}"
        )
    start = -(-head.position // alignment) * alignment
    errors: list[str] = []
    tensors: list[StoredTensor] = []
    expected = 0
    for entry in entries:
        label = f"tensor {shown(entry.name)}"
        if problem := _entry_error(entry):
            errors.append(f"{label}: {problem}")
            break
        tensor = _stored(entry, start)
        tensors.append(tensor)
        if entry.offset != expected:
            errors.append(f"{label}: begins at byte {entry.offset} of the data; must be {expected}")
            break
        if start + entry.offset + tensor.nbytes > file.size:
            errors.append(f"{label}: truncated: ends behind the {file.size} bytes of the file")
            break
        expected = -(-(entry.offset + tensor.nbytes) // alignment) * alignment
        if entry.kind in BLOCK_TYPES:
            file.blocks[entry.name] = BLOCK_TYPES[entry.kind]
        file.shapes[entry.name] = entry.shape
    if not entries:
        errors.append("holds no tensors")
    raise_if_any(errors or entry_errors(tensors), str(file.path))
    file.tensors = {tensor.name: tensor for tensor in tensors}


class _Entry(NamedTuple):
    """kind: the number of its type. offset: from the beginning of the data on."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def _entry(head: _Head) -> _Entry:
    name, dimensions = head.text(_MAX_KEY), head.number("<I")
    if dimensions > _MAX_DIMENSIONS:
        raise head.error(f"{dimensions} dimensions; at most {_MAX_DIMENSIONS} are allowed")
    sizes = struct.unpack(f"<{dimensions}Q", head.take(8 * dimensions))
    kind, offset = struct.unpack("<IQ", head.take(12))
    return _Entry(name, tuple(reversed(sizes)), kind, offset)


def _entry_error(entry: _Entry) -> str | None:
    if not entry.shape or 0 in entry.shape or math.prod(entry.shape) * 8 > MAX_SIZE:
        return f"shape {shown([*entry.shape])}; must be of positive sizes, not too large"
    block = BLOCK_TYPES.get(entry.kind)
    if block is not None:
        if entry.shape[-1] % block.size == 0:
            return None
        return f"{entry.shape[-1]} numbers in a row; {block.name} has blocks of {block.size}"
    if entry.kind in PLAIN_TYPES:
        return None
    known = ", ".join([*PLAIN_TYPES.values(), *(known.name for known in BLOCK_TYPES.values())])
    return f"type {UNREAD_TYPES.get(entry.kind, entry.kind)} is not read; read are {known}"


def _stored(entry: _Entry, start: int) -> StoredTensor:
    if entry.kind in PLAIN_TYPES:
        dtype, shape = PLAIN_TYPES[entry.kind], entry.shape
    else:
        block = BLOCK_TYPES[entry.kind]
        dtype, shape = "U8", (*entry.shape[:-1], entry.shape[-1] // block.size * block.nbytes)
    extent = ByteExtent(start + entry.offset, math.prod(shape) * DTYPES[dtype])
    return StoredTensor(entry.name, dtype, shape, (extent,))
