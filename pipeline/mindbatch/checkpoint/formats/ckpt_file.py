"""MindSpore's .ckpt files: laid out, and opened without reading tensor data; every byte around it is checked.

A .ckpt is a Checkpoint message of Protocol Buffers: `repeated Value value = 1`, where Value has
`string tag = 1` and `TensorProto tensor = 2`, and TensorProto has `repeated int64 dims = 1`,
`string tensor_type = 2` and `bytes tensor_content = 3`. A parameter above 512 MiB is several Values of one
tag that follow each other: all with its dims, each with the next part of its bytes. A string is of type
"str", with dims [0] and UTF-32 characters. There may be 17 bytes more at the end: `crc_num` and the CRC-32 of
everything before as a big-endian number of ten bytes (`save_checkpoint(crc_check=True)`).

Opening is stricter than a parser of Protocol Buffers, which takes fields in any order and skips unknown ones:
they come in the order in which MindSpore writes them, and each once, so that a changed byte is found.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path

from mindbatch.checkpoint.error_lines import MAX_LINES, raise_if_any, shown
from mindbatch.checkpoint.formats.stored import (
    DTYPES,
    MAX_DIMENSIONS,
    MAX_NAME_LENGTH,
    ByteExtent,
    FileLayout,
    StoredFile,
    StoredTensor,
    entry_errors,
    name_errors,
    shape_errors,
)
from mindbatch.checkpoint.formats.wire_format import (
    BYTES,
    VARINT,
    ByteSource,
    WireReader,
    bytes_field,
    bytes_header,
    number_field,
)
from mindbatch.io.closing import closed_on_error
from mindbatch.io.errors import CheckpointError
from mindbatch.io.file_signatures import foreign_format

VALUE = 1
TAG, TENSOR, MAP_TENSOR = 1, 2, 3
DIMS, TENSOR_TYPE, TENSOR_CONTENT = 1, 2, 3

DTYPE_OF: Mapping[str, str] = {
    "Bool": "BOOL", "Int8": "I8", "UInt8": "U8", "Int16": "I16", "UInt16": "U16", "Int32": "I32",
    "UInt32": "U32", "Int64": "I64", "UInt64": "U64", "Float16": "F16", "BFloat16": "BF16", "Float32": "F32",
    "Float64": "F64", "Complex64": "C64", "Float8E4M3FN": "F8_E4M3", "Float8E5M2": "F8_E5M2",
}  # fmt: skip
"""The dtype's name in safetensors, by its name in MindSpore."""

TEXT_TYPE = "str"

# MindSpore 2.9 writes these into a .ckpt and cannot load them from it.
UNLOADABLE = frozenset({"C64", "F8_E4M3", "F8_E5M2", "F8_E8M0"})
WRITTEN_TYPES: Mapping[str, str] = {
    dtype: name for name, dtype in DTYPE_OF.items() if dtype not in UNLOADABLE
}

SLICE_BYTES = 512 << 20
"""Largest part of a parameter in one Value, as MindSpore splits them."""

CRC_MARK = b"crc_num"
CRC_BYTES = len(CRC_MARK) + 10

ENCRYPTED_MARKS = tuple(mark.to_bytes(4, "little") for mark in (0x7F3A5ED8, 0x7F3A5ED9, 0x7F3A5EDA))
"""First bytes of a file encrypted by MindSpore: AES-GCM, AES-CBC, SM4-CBC."""


def ckpt_layout(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], slice_bytes: int = SLICE_BYTES
) -> FileLayout:
    """Lays out tensors (name, dtype, shape) in the given order, in parts of at most `slice_bytes`.

    CheckpointError for what cannot be stored, or what MindSpore could not load again: some dtypes, and
    tensors without any element.
    """
    entries = [StoredTensor(*tensor) for tensor in tensors]
    raise_if_any(entry_errors(entries) or _unloadable(entries))
    head: list[tuple[int, bytes]] = []
    extents: dict[str, tuple[ByteExtent, ...]] = {}
    position = 0
    for entry in entries:
        parts = []
        for start in range(0, entry.nbytes, slice_bytes):
            nbytes = min(slice_bytes, entry.nbytes - start)
            before = _before_content(entry, nbytes)
            head.append((position, before))
            parts.append(ByteExtent(position + len(before), nbytes))
            position += len(before) + nbytes
        extents[entry.name] = tuple(parts)
    return FileLayout(position, head, extents)


def _unloadable(entries: Iterable[StoredTensor]) -> list[str]:
    errors = []
    for entry in entries:
        where = f"tensor {shown(entry.name)}"
        if entry.dtype not in WRITTEN_TYPES:
            errors.append(f"{where}: MindSpore loads no {entry.dtype} from .ckpt; must be safetensors")
        elif not entry.nbytes:
            errors.append(f"{where}: shape {[*entry.shape]}; a .ckpt holds no tensor without elements")
    return errors


def _before_content(entry: StoredTensor, nbytes: int) -> bytes:
    """Everything of a Value up to its `nbytes` of contents."""
    described = b"".join(number_field(DIMS, size) for size in entry.shape)
    described += bytes_field(TENSOR_TYPE, WRITTEN_TYPES[entry.dtype].encode())
    described += bytes_header(TENSOR_CONTENT, nbytes)
    tensor = bytes_header(TENSOR, len(described) + nbytes) + described
    value = bytes_field(TAG, entry.name.encode()) + tensor
    return bytes_header(VALUE, len(value) + nbytes) + value


MAX_VALUES = 1_000_000
_MAX_TYPE_BYTES = 64
_MAX_TEXT_BYTES = 1 << 20


@dataclass(slots=True)
class _Value:
    """One Value: a whole tensor or the next part of one."""

    name: str
    kind: str
    dims: list[int]
    content: ByteExtent


def open_ckpt(path: str | os.PathLike[str]) -> StoredFile:
    """Opens and checks a .ckpt file; its texts are read, its tensors are not.

    CheckpointError for a file that is not exactly right, is encrypted, or is of another format.
    """
    file = StoredFile(Path(path), "ckpt")
    with closed_on_error(file):
        _Parser(file).parse()
    return file


class _Parser:
    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._where = str(file.path)
        self._tensors: dict[str, StoredTensor] = {}
        self._texts: dict[str, str] = {}
        self._names: set[str] = set()
        self._errors: list[str] = []

    def parse(self) -> None:
        self._refuse_other_formats()
        for name, parts in groupby(self._values(), lambda value: value.name):
            self._take(name, [*parts])
        raise_if_any(self._errors, self._where)
        self._file.tensors, self._file.texts = self._tensors, self._texts

    def _refuse_other_formats(self) -> None:
        head = self._file.fetch(0, 64)
        if head.startswith(ENCRYPTED_MARKS):
            raise CheckpointError(
                f"{self._where}: an encrypted MindSpore checkpoint; must be a plain one: load it where its "
                "key is, with mindspore.load_checkpoint(..., dec_key=...), and save it without enc_key"
            )
        if reason := foreign_format(head):
            raise CheckpointError(f"{self._where}: {reason}; must be a MindSpore checkpoint")

    def _values(self) -> Iterator[_Value]:
        """Every Value, up to the trailer if there is one: no message could begin with its bytes."""
        reader = WireReader(ByteSource(self._where, self._file.fetch), 0, self._file.size)
        for number in count():
            if reader.position == self._file.size - CRC_BYTES:
                trailer = self._file.fetch(reader.position, CRC_BYTES)
                if trailer.startswith(CRC_MARK):
                    self._file.crc = reader.position, int.from_bytes(trailer[len(CRC_MARK) :], "big")
                    return
            if reader.at_end:
                return
            if number == MAX_VALUES:
                raise CheckpointError(f"{self._where}: more than {MAX_VALUES} entries; no more are allowed")
            value = _value(reader)
            yield value
            reader.source.subject = f"after tensor {shown(value.name)}: "

    def _take(self, name: str, parts: Sequence[_Value]) -> None:
        """A tensor, or a text, of Values that follow each other."""
        first, nbytes = parts[0], sum(part.content.nbytes for part in parts)
        errors = [*name_errors(name), *_type_errors(first)]
        is_text, shape = first.kind == TEXT_TYPE, _shape(first)
        needed = first.content.nbytes if is_text or errors else math.prod(shape) * _itemsize(first)
        others = [part for part in parts[1:] if (part.kind, part.dims) != (first.kind, first.dims)]
        is_whole_before = len(parts) > 1 and nbytes - parts[-1].content.nbytes >= needed
        if others or is_whole_before or name in self._names:
            errors.append("is there twice")
        elif nbytes != needed:
            described = f"shape {shown(first.dims)} of {first.kind}"
            errors.append(f"{described} needs {needed} bytes, the file holds {nbytes}")
        self._names.add(name)
        if errors:
            self._errors += [f"tensor {shown(name)}: {error}" for error in errors]
            if len(self._errors) > MAX_LINES:
                raise_if_any(self._errors, self._where)
        elif is_text:
            self._texts[name] = self._text(name, first.content)
        else:
            extents = tuple(part.content for part in parts)
            self._tensors[name] = StoredTensor(name, DTYPE_OF[first.kind], shape, extents)

    def _text(self, name: str, extent: ByteExtent) -> str:
        """Decodes a text entry, without padding zeros."""
        try:
            return self._file.fetch(*extent).decode("utf-32-le").rstrip("\0")
        except UnicodeDecodeError:
            raise CheckpointError(f"{self._where}: tensor {shown(name)}: not a string in UTF-32") from None


def _itemsize(value: _Value) -> int:
    return DTYPES[DTYPE_OF[value.kind]]


def _type_errors(value: _Value) -> list[str]:
    if value.kind == TEXT_TYPE:
        if value.dims != [0] or value.content.nbytes % 4 or value.content.nbytes > _MAX_TEXT_BYTES:
            return [f"a string must have dims [0] and at most {_MAX_TEXT_BYTES} bytes of UTF-32"]
        return []
    if value.kind not in DTYPE_OF:
        return [f"type {shown(value.kind)} is unknown; known are {', '.join(DTYPE_OF)}, {TEXT_TYPE}"]
    return shape_errors(value.dims, _itemsize(value))


def _shape(value: _Value) -> tuple[int, ...]:
    """dims [0] with one element are a scalar's: MindSpore wrote it so once, and still reads it so."""
    if value.dims == [0] and value.kind in DTYPE_OF:
        return () if value.content.nbytes == _itemsize(value) else (0,)
    return tuple(value.dims)


def _value(file: WireReader) -> _Value:
    _expect(file, VALUE, "an entry")
    value = file.message()
    _expect(value, TAG, "a name")
    name = value.message().text(4 * MAX_NAME_LENGTH)
    value.source.subject = f"tensor {shown(name)}: "
    start = value.position
    if not value.at_end and value.tag() == (MAP_TENSOR, BYTES):
        value.source.refuse(start, "a map parameter; must be a tensor")
    value.position = start
    _expect(value, TENSOR, "a tensor")
    tensor = value.message()
    dims, kind = _dims_and_type(tensor)
    content = tensor.message()
    for rest in (tensor, value):
        if not rest.at_end:
            rest.refuse(f"{rest.end - rest.position} bytes more than an entry has")
    return _Value(name, kind, dims, ByteExtent(content.position, content.end - content.position))


def _dims_and_type(tensor: WireReader) -> tuple[list[int], str]:
    """Everything before the bytes of the content, whose length is next."""
    dims: list[int] = []
    while True:
        if tensor.at_end:
            tensor.refuse("truncated: an entry ends before its contents")
        position, tag = tensor.position, tensor.tag()
        if tag != (DIMS, VARINT):
            break
        dims.append(tensor.signed())
        if len(dims) > MAX_DIMENSIONS:
            tensor.refuse(f"more than {MAX_DIMENSIONS} dims")
    if tag != (TENSOR_TYPE, BYTES):
        tensor.source.refuse(position, f"field {tag[0]}; must be {TENSOR_TYPE}, the dtype")
    kind = tensor.message().text(_MAX_TYPE_BYTES)
    _expect(tensor, TENSOR_CONTENT, "the contents")
    return dims, kind


def _expect(reader: WireReader, number: int, expected: str) -> None:
    """Takes the tag of a field that must come next."""
    if reader.at_end:
        reader.refuse(f"truncated: an entry ends before {expected}")
    position, tag = reader.position, reader.tag()
    if tag != (number, BYTES):
        reader.source.refuse(position, f"field {tag[0]}; must be {number}, {expected}")
