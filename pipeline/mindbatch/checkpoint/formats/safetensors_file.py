"""One safetensors file, mapped into memory: raw views of its tensors, and their values as float32."""

import hashlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindbatch.checkpoint.faults import did_you_mean, shown
from mindbatch.checkpoint.formats.float_conversion import FLOAT_DTYPES, bounded_slices, widen
from mindbatch.checkpoint.formats.safetensors_header import (
    LENGTH_BYTES,
    TensorInfo,
    header_length,
    parse_header,
)
from mindbatch.checkpoint.formats.stored import DTYPES, SLICE_BYTES
from mindbatch.errors import CheckpointError

_NUMPY_TYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
    "U16": "<u2", "I16": "<i2", "F16": "<f2", "BF16": "<u2", "U32": "<u4", "I32": "<i4", "F32": "<f4",
    "U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8",
}  # fmt: skip


class SafetensorsFile:
    """A checked file. Its mapping lives as long as this object or a view taken from it.

    `tensors` maps each name to its TensorInfo, in the order of the data. CheckpointError when the file cannot
    be read or its header is not exactly right (see safetensors_header).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._map = _mapped(self.path)
        size, where = len(self._map), str(self.path)
        self._head_bytes = data = LENGTH_BYTES + header_length(self._map[:64], size, where)
        self.tensors: dict[str, TensorInfo] = parse_header(self._map[LENGTH_BYTES:data], size, where)
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def info(self, name: str) -> TensorInfo:
        """The tensor's entry. CheckpointError when there is none of that name."""
        try:
            return self.tensors[name]
        except KeyError:
            near = did_you_mean(name, self.tensors)
            raise CheckpointError(f"{self.path}: no tensor {shown(name)}{near}") from None

    def raw(self, name: str) -> npt.NDArray[Any]:
        """A read-only view in the file (no copy), of the tensor's shape; it may be unaligned in memory.

        BF16 comes as its bits in uint16, 8-bit floats as theirs in uint8.
        """
        info = self.info(name)
        return self._bytes[info.start : info.end].view(_NUMPY_TYPES[info.dtype]).reshape(info.shape)

    def float32(
        self, name: str, out: npt.NDArray[np.float32] | None = None, rows: slice | None = None
    ) -> npt.NDArray[np.float32]:
        """The F32, F16 or BF16 tensor (or its `rows`, a slice of the first axis) as float32.

        Without `out` an aligned F32 tensor is a read-only view in the file; everything else is a new array.
        `out` (float32, of the result's shape, any strides) is filled in slices of at most 4 MiB; their
        pages of the file are given back at once and memory holds one copy.

        CheckpointError for another dtype or a shape that does not fit `out`; ValueError for `rows` outside
        the tensor or with a step, or an `out` that is not float32.
        """
        info = self.info(name)
        if info.dtype not in FLOAT_DTYPES:
            raise CheckpointError(self._fault(name, f"dtype {info.dtype}; needed {', '.join(FLOAT_DTYPES)}"))
        source = _rows_of(self.raw(name), rows)
        if out is None:
            if info.dtype == "F32" and source.flags.aligned:
                return source
            out = np.empty(source.shape, np.float32)
        if out.dtype != np.float32:
            raise ValueError(f"out has dtype {out.dtype}; must be float32")
        if out.shape != source.shape:
            raise CheckpointError(self._fault(name, f"shape {[*source.shape]}; needed {[*out.shape]}"))
        for index in bounded_slices(source.shape, SLICE_BYTES // DTYPES[info.dtype]):
            part = source[index]
            widen(part, info.dtype, out[index])
            self._release(part)
        return out

    def chunks(self, name: str) -> Iterator[memoryview]:
        """The tensor's bytes in pieces of at most 4 MiB; going on gives back the last one's pages."""
        info = self.info(name)
        for start in range(info.start, info.end, SLICE_BYTES):
            piece = self._bytes[start : min(start + SLICE_BYTES, info.end)]
            yield piece.data
            self._release(piece)

    def head_digest(self) -> str:
        """The hex SHA-256 of the header with its length: all that is no tensor's data."""
        return hashlib.sha256(self._map[: self._head_bytes]).hexdigest()

    def release(self, name: str) -> None:
        """Gives the tensor's pages back; views stay valid, a later access reads the file again."""
        info = self.info(name)
        self._release(self._bytes[info.start : info.end])

    def _fault(self, name: str, fault: str) -> str:
        return f"{self.path}: tensor {shown(name)}: {fault}"

    def _release(self, part: npt.NDArray[Any]) -> None:
        """Drops the part's pages from this process's memory; a later access reads the file again."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        begin = part.ctypes.data - self._bytes.ctypes.data
        first = begin // mmap.PAGESIZE * mmap.PAGESIZE
        last = (begin + part.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


def _mapped(path: Path) -> mmap.mmap:
    if not path.is_file():  # also keeps a pipe from blocking open()
        raise CheckpointError(f"{path}: {'not a regular file' if path.exists() else 'missing'}")
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise CheckpointError(f"{path}: empty; must be a complete safetensors file")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def _rows_of(source: npt.NDArray[Any], rows: slice | None) -> npt.NDArray[Any]:
    if rows is None:
        return source
    start, stop, step = rows.start or 0, rows.stop, rows.step
    count = source.shape[0] if source.ndim else 0
    stop = count if stop is None else stop
    if source.ndim == 0 or step not in (None, 1) or not 0 <= start <= stop <= count:
        raise ValueError(f"rows {rows} of a tensor of shape {[*source.shape]}; must lie inside it, step 1")
    return source[start:stop]
