"""A tiny writer of MindSpore's .ckpt that also writes what is wrong, made of Protocol Buffers' fields."""

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

TYPES = {
    "float32": "Float32",
    "float16": "Float16",
    "float64": "Float64",
    "int64": "Int64",
    "int8": "Int8",
    "bool": "Bool",
    "uint16": "BFloat16",
}


def varint(value: int) -> bytes:
    """Seven bits a byte, lowest first."""
    value %= 1 << 64
    data = []
    while True:
        value, low = divmod(value, 128)
        data.append(low | (128 if value else 0))
        if not value:
            return bytes(data)


def field(number: int, content: bytes) -> bytes:
    """A field of bytes."""
    return varint(number * 8 + 2) + varint(len(content)) + content


def number(number: int, value: int) -> bytes:
    """A field of a number."""
    return varint(number * 8) + varint(value)


def tensor(dims: Sequence[int], kind: str, content: bytes) -> bytes:
    """A TensorProto."""
    return b"".join(number(1, dim) for dim in dims) + field(2, kind.encode()) + field(3, content)


def value(name: str, dims: Sequence[int], kind: str, content: bytes) -> bytes:
    """A Value, as the file holds it."""
    return field(1, field(1, name.encode()) + field(2, tensor(dims, kind, content)))


def ckpt_bytes(tensors: Mapping[str, npt.NDArray[Any]], slice_bytes: int = 1 << 30) -> bytes:
    """A right file of these arrays; uint16 arrays are taken to be bfloat16 bits."""
    parts = []
    for name, array in tensors.items():
        content = array.tobytes()
        for start in range(0, max(1, len(content)), slice_bytes):
            part = content[start : start + slice_bytes]
            parts.append(value(name, array.shape, TYPES[array.dtype.name], part))
    return b"".join(parts)


def text_value(name: str, text: str) -> bytes:
    """A string, as MindSpore's append_dict has them."""
    return value(name, [0], "str", np.array(text).tobytes())


def with_crc(data: bytes) -> bytes:
    """The file with MindSpore's checksum."""
    return data + b"crc_num" + crc32(data).to_bytes(10, "big")
