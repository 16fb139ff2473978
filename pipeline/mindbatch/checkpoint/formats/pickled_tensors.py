"""Meaning of the names in PyTorch's pickles: tensors and their storages, as plain records.

Source of the names and their arguments: torch/_utils.py and torch/serialization.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.formats.pickle_machine import Global, Ordered, PickleFault
from mindbatch.checkpoint.formats.stored import MAX_DIMENSIONS, MAX_SIZE

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


class TensorMeaning:
    """The `Meaning` of torch.save's pickles. The number of arguments, which may be shared, is checked first.

    storages: all that were named, by key.
    """

    def __init__(self) -> None:
        self.storages: dict[str, TorchStorage] = {}

    def named(self, name: str) -> Global:
        """The name, if it is one that tensors are saved with."""
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

    def persistent(self, identity: Any) -> TorchStorage:
        """A storage, from ("storage", its class, key, device, count) and, in the old format, None."""
        if isinstance(identity, tuple) and len(identity) <= _MAX_ARGUMENTS:
            match identity:
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
