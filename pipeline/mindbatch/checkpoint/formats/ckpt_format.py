"""MindSpore's checkpoint format: the numbers of its fields and the names of its dtypes.

A .ckpt is a Checkpoint message of Protocol Buffers: `repeated Value value = 1`, where Value has
`string tag = 1` and `TensorProto tensor = 2`, and TensorProto has `repeated int64 dims = 1`,
`string tensor_type = 2` and `bytes tensor_content = 3`. A parameter above 512 MiB is several Values of one
tag that follow each other: all with its dims, each with the next part of its bytes. A string is of type
"str", with dims [0] and UTF-32 characters. There may be 17 bytes more at the end: `crc_num` and the CRC-32 of
everything before as a big-endian number of ten bytes (`save_checkpoint(crc_check=True)`).
"""

from collections.abc import Iterable, Iterator, Mapping

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.formats.stored import ByteExtent, FileLayout, TensorEntry, entry_faults
from mindbatch.checkpoint.formats.wire_format import bytes_field, bytes_header, number_field

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
    entries = [TensorEntry(*tensor) for tensor in tensors]
    raise_if_any(entry_faults(entries) or _unloadable(entries))
    head: list[tuple[int, bytes]] = []
    extents: dict[str, tuple[ByteExtent, ...]] = {}
    position = 0
    for entry in entries:
        parts = []
        for nbytes in _parts(entry.nbytes, slice_bytes):
            before = _before_content(entry, nbytes)
            head.append((position, before))
            parts.append(ByteExtent(position + len(before), nbytes))
            position += len(before) + nbytes
        extents[entry.name] = tuple(parts)
    return FileLayout(position, head, extents)


def _unloadable(entries: Iterable[TensorEntry]) -> list[str]:
    faults = []
    for entry in entries:
        where = f"tensor {shown(entry.name)}"
        if entry.dtype not in WRITTEN_TYPES:
            faults.append(f"{where}: MindSpore loads no {entry.dtype} from .ckpt; must be safetensors")
        elif not entry.nbytes:
            faults.append(f"{where}: shape {[*entry.shape]}; a .ckpt holds no tensor without elements")
    return faults


def _parts(nbytes: int, limit: int) -> Iterator[int]:
    for start in range(0, nbytes, limit):
        yield min(limit, nbytes - start)


def _before_content(entry: TensorEntry, nbytes: int) -> bytes:
    """Everything of a Value up to its `nbytes` of contents."""
    described = b"".join(number_field(DIMS, size) for size in entry.shape)
    described += bytes_field(TENSOR_TYPE, WRITTEN_TYPES[entry.dtype].encode())
    described += bytes_header(TENSOR_CONTENT, nbytes)
    tensor = bytes_header(TENSOR, len(described) + nbytes) + described
    value = bytes_field(TAG, entry.name.encode()) + tensor
    return bytes_header(VALUE, len(value) + nbytes) + value
