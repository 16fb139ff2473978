"""Tensors that are views of a storage: checked, and read row-major whatever their strides are."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from threading import Lock

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.formats.pickled_tensors import TensorView
from mindbatch.checkpoint.formats.stored import (
    DTYPES,
    ByteExtent,
    ReadableFile,
    StoredFile,
    StoredTensor,
    name_faults,
    shape_faults,
)


def view_faults(name: str, view: TensorView) -> list[str]:
    """Checks a tensor's name and shape, and that its elements lie inside its storage, each once."""
    itemsize = DTYPES[view.storage.dtype]
    if form_faults := [*name_faults(name), *shape_faults([*view.shape], itemsize)]:
        return form_faults
    if len(view.strides) != len(view.shape):
        return [f"shape {shown([*view.shape])} with strides {shown([*view.strides])}"]
    end = view.first + _span(view)
    if end > view.storage.count:
        return [f"ends at element {end} of a storage of {view.storage.count}"]
    if prod(view.shape) and _repeats(view):
        return [f"shape {shown([*view.shape])} with strides {shown([*view.strides])} repeats elements"]
    return []


def _span(view: TensorView) -> int:
    """Elements of the storage from the first to the last, both counted."""
    if not prod(view.shape):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))


def _repeats(view: TensorView) -> bool:
    """True if an element of the storage may occur twice: a small file could stand for any memory."""
    reach = 0
    for stride, size in sorted(zip(view.strides, view.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def stored_view(name: str, view: TensorView, storage: ByteExtent) -> tuple[StoredTensor, tuple[int, ...]]:
    """The tensor with the part of the file that its elements are in, and its strides."""
    itemsize = DTYPES[view.storage.dtype]
    extent = ByteExtent(storage.offset + view.first * itemsize, _span(view) * itemsize)
    return StoredTensor(name, view.storage.dtype, view.shape, (extent,)), view.strides


class StridedFile(StoredFile):
    """A file whose tensors may be transposed or parts of others; such a one is gathered when it is read.

    The last one gathered is kept: tensors are read in pieces.
    """

    def __init__(
        self, file: ReadableFile, kind: str, tensors: Iterable[tuple[StoredTensor, tuple[int, ...]]]
    ) -> None:
        strided = [*tensors]
        super().__init__(file, kind, {tensor.name: tensor for tensor, _ in strided})
        self._strides = {
            tensor.name: strides for tensor, strides in strided if not _is_row_major(tensor.shape, strides)
        }
        self._gathered: tuple[str, memoryview] | None = None
        self._lock = Lock()

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        if name not in self._strides:
            super().read_into(name, start, buffer)
            return
        flat = buffer.cast("B")
        with self._lock:
            if self._gathered is None or self._gathered[0] != name:
                self._gathered = name, self._gather(self.info(name), self._strides[name])
            data = self._gathered[1]
        if not 0 <= start <= start + len(flat) <= len(data):
            raise ValueError(f"bytes {start}, {len(flat)} of a tensor of {len(data)}")
        flat[:] = data[start : start + len(flat)]

    def _gather(self, tensor: StoredTensor, strides: tuple[int, ...]) -> memoryview:
        """Gathers the bytes of a tensor, row-major."""
        import numpy as np  # nothing else here needs it

        from mindbatch.checkpoint.formats.floats import array_type

        [extent] = tensor.extents
        stored = np.empty(extent.nbytes // tensor.itemsize, array_type(tensor.dtype))
        self._file.fill(extent.offset, stored.data.cast("B"))
        steps = [stride * tensor.itemsize for stride in strides]
        view = np.lib.stride_tricks.as_strided(stored, tensor.shape, steps)
        return np.ascontiguousarray(view).reshape(-1).data.cast("B")


def _is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if elements follow each other as stored; a size of 1 needs no stride."""
    needed = 1
    if not prod(shape):
        return True
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != needed:
            return False
        needed *= size
    return True
