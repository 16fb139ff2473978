"""Bytes of PyTorch's files, put together by hand so that each part of them can be wrong."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

STORAGES = {"float32": "FloatStorage", "float16": "HalfStorage", "int64": "LongStorage"}
ORDERED = b"ccollections\nOrderedDict\n"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


def text(value: str) -> bytes:
    """BINUNICODE."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    """BININT, or LONG1 for what does not fit."""
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def sizes(values: Sequence[int]) -> bytes:
    """A tuple of integers."""
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(key: str, count: int, kind: str = "FloatStorage", name: bytes = b"storage") -> bytes:
    """BINPERSID of a storage."""
    return (
        b"(" + text(name.decode()) + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + number(count)
    ) + b"tQ"


def tensor(stored: bytes, shape: Sequence[int], strides: Sequence[int], first: int = 0) -> bytes:
    """REDUCE of _rebuild_tensor_v2."""
    return (
        REBUILD + b"(" + stored + number(first) + sizes(shape) + sizes(strides) + b"\x89" + ORDERED + b")RtR"
    )


def mapping(values: Mapping[str, bytes]) -> bytes:
    """A pickle of a dict."""
    return b"\x80\x02}(" + b"".join(text(name) + value for name, value in values.items()) + b"u."


def pickle_of(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The pickle of arrays, each with a storage of its own."""
    return mapping(
        {
            name: tensor(
                storage(str(key), array.size, STORAGES[str(array.dtype)]),
                array.shape,
                [stride // array.itemsize for stride in array.strides],
            )
            for key, (name, array) in enumerate(arrays.items())
        }
    )


def zip_of(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file of these members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return file.getvalue()


def members_of(arrays: Mapping[str, NDArray[Any]], data: bytes | None = None) -> dict[str, bytes]:
    """The members of a file of arrays. data: in place of the pickle."""
    pickled = pickle_of(arrays) if data is None else data
    stored = {f"w/data/{key}": np.asarray(array).tobytes() for key, array in enumerate(arrays.values())}
    return {"w/data.pkl": pickled, "w/byteorder": b"little", **stored, "w/version": b"3\n"}


def pytorch_bytes(arrays: Mapping[str, NDArray[Any]], data: bytes | None = None) -> bytes:
    """A file as torch.save writes it."""
    return zip_of(members_of(arrays, data))


def old_pytorch_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A file as it was written before PyTorch 1.6."""
    magic = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
    system = b"\x80\x02}(" + text("little_endian") + b"\x88u."
    keys = b"\x80\x02](" + b"".join(text(str(key)) for key in range(len(arrays))) + b"e."
    stored = b"".join(struct.pack("<Q", array.size) + array.tobytes() for array in arrays.values())
    return magic + system + pickle_of(arrays) + keys + stored
