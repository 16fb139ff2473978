"""A folder of quantised weights as if it stored floats: what copies tensors byte by byte takes it, too."""

from typing import Any

import numpy as np

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.folders.tensor_set import TensorSet
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES
from mindbatch.checkpoint.formats.stored import StoredFile, StoredTensor

_FLOAT = "F32"
_ITEM = np.dtype(np.float32).itemsize


class WidenedFile(StoredFile):
    """The folder's tensors in float32, computed when they are read; those that are no floats as they are."""

    def __init__(self, folder: ModelFolder) -> None:
        self.path, self.kind, self._file = folder.path, "floats", -1
        self.texts, self.crc, self._folder = {}, None, folder
        self.size, self.stamp = 0, (0, 0)
        self.tensors = {name: self._entry(name) for name in folder.names}

    def _entry(self, name: str) -> StoredTensor:
        info = self._folder.info(name)
        return StoredTensor(name, _FLOAT if info.dtype in FLOAT_DTYPES else info.dtype, info.shape)

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        info, flat = self.info(name), buffer.cast("B")
        if info.dtype != _FLOAT:
            self._folder.read_into(name, start, buffer)
            return
        if not 0 <= start <= start + len(flat) <= info.nbytes:
            raise ValueError(
                f"bytes {start} to {start + len(flat)} of {info.nbytes}; must lie inside the tensor"
            )
        width = info.shape[-1] * _ITEM if len(info.shape) > 1 else _ITEM
        filled = 0
        while filled < len(flat):
            first = (start + filled) // width
            rows = self._floats(info, first, -(-(start + len(flat)) // width))
            data = np.ascontiguousarray(rows).data.cast("B")[start + filled - first * width :]
            count = min(len(data), len(flat) - filled)
            flat[filled : filled + count] = data[:count]
            filled += count

    def _floats(self, info: StoredTensor, first: int, last: int) -> Any:
        """Rows from `first` on, to `last` or to the end of a matrix of a stack."""
        if len(info.shape) > 2:
            height = info.shape[-2]
            last = min(last, (first // height + 1) * height)
        return self._folder.floats(info.name, rows=slice(first, last))

    def close(self) -> None:
        self._folder.close()


class WidenedSet(TensorSet):
    """All tensors of such a folder, which is closed with it."""

    def __init__(self, folder: ModelFolder) -> None:
        super().__init__(folder.path, {str(folder.path): WidenedFile(folder)})
        self._folder = folder
        self.notes = [f"{folder.path}: {folder.quantised}, is written as floats", *folder.notes]

    def file_name(self, name: str) -> str:
        return self._folder.file_name(name)

    def identity(self) -> Any:
        return {"stored_as": self._folder.quantised, **self._folder.identity()}

    def stamps(self) -> Any:
        return self._folder.stamps()
