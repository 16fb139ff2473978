"""A tiny safetensors writer that also writes what is wrong, and model folders made of its files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

DTYPE_NAMES = {
    "float32": "F32",
    "float16": "F16",
    "float64": "F64",
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
    "void8": "F8_E4M3",  # NumPy has no such floats: bytes that are no numbers stand for them
}


def bfloat16_bits(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """The upper halves of the float32 values (truncated), which is what a BF16 tensor stores."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def dtype_name(array: npt.NDArray[Any]) -> str:
    """uint16 arrays are taken to be bfloat16 bits."""
    return "BF16" if array.dtype == np.uint16 else DTYPE_NAMES[array.dtype.name]


def file_bytes(header: object, data: bytes = b"") -> bytes:
    """A file with this header (JSON text or an object to be dumped) and data, whatever they say."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    """One tensor of a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_bytes(tensors: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """A right file of these arrays."""
    header, data = {}, b""
    for name, array in tensors.items():
        header[name] = entry(dtype_name(array), list(array.shape), len(data), len(data) + array.nbytes)
        data += array.tobytes()
    return file_bytes(header, data)


def write_folder(
    folder: Path, tensors: Mapping[str, npt.NDArray[Any]], config: Mapping[str, Any] | None = None
) -> Path:
    """A model folder with one weight file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return folder


def write_shards(folder: Path, shards: Mapping[str, Mapping[str, npt.NDArray[Any]]]) -> Path:
    """A model folder with an index and these shards."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    for file, tensors in shards.items():
        (folder / file).write_bytes(safetensors_bytes(tensors))
    write_index(folder, {name: file for file, tensors in shards.items() for name in tensors})
    return folder


def write_index(folder: Path, weight_map: object) -> None:
    """The index alone."""
    text = json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)
