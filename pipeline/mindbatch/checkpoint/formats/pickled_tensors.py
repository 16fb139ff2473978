"""Meaning of the names in PyTorch's pickles: tensors and their storages, as plain records.

Source of the names and their arguments: torch/_utils.py and torch/serialization.py.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from math import prod
from threading import Lock
from typing import Any

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.formats.pickle_machine import Global, InertUnpickler, Ordered, PickleFault
from mindbatch.checkpoint.formats.stored import (
    DTYPES,
    MAX_DIMENSIONS,
    MAX_SIZE,
    ByteExtent,
    ReadableFile,
    StoredFile,
    StoredTensor,
    name_faults,
    shape_faults,
)

STORAGES = {
    "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "DoubleStorage": "F64",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL",
}  # fmt: skip
"""Dtypes by the class of the storage, of module torch."""

_MAX_KEY = 40
_MAX_ARGUMENTS = 8


@dataclass(frozen=True, slots=True)
class TorchStorage:
    """`count` elements that tensors may share; `key` says where they are."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor: element `first` of the storage on, in steps of `strides` elements. Nothing is checked yet."""

    storage: TorchStorage
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class TensorUnpickler(InertUnpickler):
    """Reads torch.save's pickles. The number of arguments, which may be shared, is checked first.

    storages: all that were named, by key.
    """

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file)
        self.storages: dict[str, TorchStorage] = {}

    def find_class(self, module: str, name: str) -> Global:
        """The full name, if it is one that tensors are saved with."""
        name = f"{module}.{name}"
        if name not in _FUNCTIONS and name.removeprefix("torch.") not in STORAGES:
            raise PickleFault(f"GLOBAL {shown(name)} is not one that tensors are saved with; never executed")
        return Global(name)

    def applied(self, function: Global, arguments: tuple[Any, ...]) -> Any:
        """An empty dict, a size, or a tensor."""
        meaning = _FUNCTIONS.get(function.name)
        value = meaning(arguments) if meaning and len(arguments) <= _MAX_ARGUMENTS else None
        if value is None:
            raise PickleFault(f"REDUCE {function.name} with other arguments than torch.save gives it")
        return value

    def persistent_load(self, pid: Any) -> TorchStorage:
        """A storage, from ("storage", its class, key, device, count) and, in the old format, None."""
        if isinstance(pid, tuple) and len(pid) <= _MAX_ARGUMENTS:
            match pid:
                case ("storage", Global(name), str(key), str(), int(count), *rest) if (
                    _is_key(key) and _are_sizes((count,)) and rest in ([], [None])
                ):
                    if dtype := STORAGES.get(name.removeprefix("torch.")):
                        return self._storage(TorchStorage(key, dtype, count))
        raise PickleFault("BINPERSID of what is not a storage as torch.save names it")

    def _storage(self, storage: TorchStorage) -> TorchStorage:
        known = self.storages.setdefault(storage.key, storage)
        if known != storage:
            raise PickleFault(
                f"storage {storage.key} holds {storage.count} {storage.dtype}; before it held {known.count} "
                f"{known.dtype}"
            )
        return known


def _ordered(arguments: tuple[Any, ...]) -> Ordered | None:
    return None if arguments else Ordered()


def _size(arguments: tuple[Any, ...]) -> tuple[int, ...] | None:
    match arguments:
        case (tuple(sizes),) if _are_sizes(sizes):
            return sizes
    return None


def _view(arguments: tuple[Any, ...]) -> TensorView | None:
    """From storage, offset, size, stride, requires_grad, hooks and, since torch 1.13, metadata."""
    match arguments:
        case (
            TorchStorage() as storage,
            int(first),
            tuple(shape),
            tuple(strides),
            bool(),
            dict() as hooks,
            *rest,
        ):
            if not hooks and rest in ([], [None], [{}]) and all(map(_are_sizes, ((first,), shape, strides))):
                return TensorView(storage, first, shape, strides)
    return None


def _parameter(arguments: tuple[Any, ...]) -> TensorView | None:
    """From data, requires_grad and hooks."""
    match arguments:
        case (TensorView() as view, bool(), dict() as hooks) if not hooks:
            return view
    return None


def _are_sizes(values: tuple[Any, ...]) -> bool:
    return len(values) <= MAX_DIMENSIONS and all(
        type(value) is int and 0 <= value <= MAX_SIZE for value in values
    )


def _is_key(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) <= _MAX_KEY


_FUNCTIONS: Mapping[str, Callable[[tuple[Any, ...]], Any]] = {
    "collections.OrderedDict": _ordered,
    "torch.Size": _size,
    "torch._utils._rebuild_tensor_v2": _view,
    "torch._utils._rebuild_parameter": _parameter,
}


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
