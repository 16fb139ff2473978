"""Files of llama.cpp, written byte by byte, also such as are wrong."""

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

KINDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8}


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(content: Any) -> bytes:
    """A value with its type."""
    if isinstance(content, bytes):  # as it is
        return content
    if isinstance(content, bool):
        return struct.pack("<I?", 7, content)
    if isinstance(content, int):
        return struct.pack("<II", 4, content)
    if isinstance(content, float):
        return struct.pack("<If", 6, content)
    if isinstance(content, str):
        return struct.pack("<I", 8) + text(content)
    if all(isinstance(item, str) for item in content):
        return struct.pack("<IIQ", 9, 8, len(content)) + b"".join(map(text, content))
    kind, form = (6, "<f4") if any(isinstance(item, float) for item in content) else (5, "<i4")
    return struct.pack("<IIQ", 9, kind, len(content)) + np.array(content, form).tobytes()


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    """The description of a tensor; the innermost size is first."""
    sizes = struct.pack(f"<{len(shape)}Q", *reversed(shape))
    return text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, offset)


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]],
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A right file. tensors: type, shape and data by name."""
    keys = b"".join(text(key) + value(content) for key, content in metadata.items())
    entries, data = b"", b""
    for name, (kind, shape, content) in tensors.items():
        entries += tensor(name, shape, KINDS[kind], len(data))
        data += content + b"\0" * (-len(content) % alignment)
    head = magic + struct.pack("<IQQ", version, len(tensors), len(metadata)) + keys + entries
    return head + b"\0" * (-len(head) % alignment) + data
