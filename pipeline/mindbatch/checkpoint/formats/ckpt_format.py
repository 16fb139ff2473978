"""MindSpore's checkpoint format: the numbers of its fields and the names of its dtypes.

A .ckpt is a Checkpoint message of Protocol Buffers: `repeated Value value = 1`, where Value has
`string tag = 1` and `TensorProto tensor = 2`, and TensorProto has `repeated int64 dims = 1`,
`string tensor_type = 2` and `bytes tensor_content = 3`. A parameter above 512 MiB is several Values of one
tag that follow each other: all with its dims, each with the next part of its bytes. A string is of type
"str", with dims [0] and UTF-32 characters. There may be 17 bytes more at the end: `crc_num` and the CRC-32 of
everything before as a big-endian number of ten bytes (`save_checkpoint(crc_check=True)`).
"""

from collections.abc import Mapping

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
"""The largest part of a parameter that one Value holds, as MindSpore cuts them."""

CRC_MARK = b"crc_num"
CRC_BYTES = len(CRC_MARK) + 10

ENCRYPTED_MARKS = tuple(mark.to_bytes(4, "little") for mark in (0x7F3A5ED8, 0x7F3A5ED9, 0x7F3A5EDA))
"""What a file encrypted by MindSpore begins with: AES-GCM, AES-CBC, SM4-CBC."""
