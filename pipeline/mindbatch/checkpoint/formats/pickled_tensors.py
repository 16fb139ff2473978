"""PyTorch's pickles of tensors as plain records: nothing is executed, and other opcodes are refused by name.

Source of the names and their arguments: torch/_utils.py and torch/serialization.py.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import Any

from mindbatch.checkpoint.error_lines import shown
from mindbatch.checkpoint.formats.stored import DTYPES, MAX_DIMENSIONS, MAX_SIZE, name_errors, shape_errors
from mindbatch.io.errors import CheckpointError

MAX_OPERATIONS = 1_000_000
"""About 28,000 tensors, in at most 300 MB of values."""

_PROTOCOL = 2  # of torch.save


class PickleError(ValueError):
    """Refusal of a pickle; the message gives the reason in one line."""


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a function or class, `module.name`; never looked up."""

    name: str


class Ordered(dict[str, Any]):
    """Stand-in for an unpickled OrderedDict."""


# What the library raises for values that are missing, of another type, or cut off.
_LIBRARY_ERRORS = (pickle.UnpicklingError, struct.error, ValueError, AttributeError, LookupError, TypeError)


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

    def errors(self, name: str) -> list[str]:
        """Checks a tensor's name and shape, and that its elements lie inside its storage, each once."""
        itemsize = DTYPES[self.storage.dtype]
        if form_errors := [*name_errors(name), *shape_errors([*self.shape], itemsize)]:
            return form_errors
        form = f"shape {shown([*self.shape])} with strides {shown([*self.strides])}"
        if len(self.strides) != len(self.shape):
            return [form]
        end = self.first + self.span
        if end > self.storage.count:
            return [f"ends at element {end} of a storage of {self.storage.count}"]
        return [f"{form} repeats elements"] if self._repeats() else []

    @property
    def span(self) -> int:
        """Elements of the storage from the first to the last, both counted."""
        if not prod(self.shape):
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    def _repeats(self) -> bool:
        """True if an element of the storage may occur twice: a small file could stand for any memory."""
        reach = 0
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)) if prod(self.shape) else ():
            if size > 1:
                if stride <= reach:
                    return True
                reach += (size - 1) * stride
        return False

    @property
    def is_row_major(self) -> bool:
        """True if elements follow each other as stored; a size of 1 needs no stride."""
        needed = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size > 1 and stride != needed:
                return not prod(self.shape)
            needed *= size
        return True


class TensorUnpickler(pickle._Unpickler):
    """Reads one of torch.save's pickles, over inert values: Python's own machine, left with few opcodes.

    Nothing is imported or called: a global becomes a `Global`, which is only its name. The class is that in
    Python, not that in C, which allocates memory for as many memo entries as a pickle claims to have.

    storages: all that were named, by key.
    """

    dispatch: _Operations  # type: ignore[misc]
    stack: list[Any]  # since the last mark
    metastack: list[list[Any]]  # the stacks below

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file)
        self.dispatch = _Operations(file)
        self.storages: dict[str, TorchStorage] = {}

    def value(self, source: str) -> Any:
        """The value of the pickle. CheckpointError, with `source` and the byte, for what is not right.

        Values may share parts, so that a short pickle can stand for a tree of any size: they are not to be
        walked over deeper than is known of them, compared or printed.
        """
        try:
            value = super().load()
            if self.stack or self.metastack:
                raise PickleError("must end with one value")
            return value
        except EOFError:
            raise CheckpointError(f"{source}: truncated") from None
        except PickleError as error:
            problem = str(error)
        except _LIBRARY_ERRORS as error:
            problem = f"opcode {_name(self.dispatch.code)} cannot be carried out ({error})"
        raise CheckpointError(f"{source}: byte {self.dispatch.position}: {problem}")

    def find_class(self, module: str, name: str) -> Global:
        """The full name, if it is one that tensors are saved with."""
        name = f"{module}.{name}"
        if name not in _FUNCTIONS and name.removeprefix("torch.") not in STORAGES:
            raise PickleError(f"GLOBAL {shown(name)} is not one that tensors are saved with; never executed")
        return Global(name)

    def persistent_load(self, pid: Any) -> TorchStorage:
        """A storage, from ("storage", its class, key, device, count) and, in the old format, None."""
        if isinstance(pid, tuple) and len(pid) <= _MAX_ARGUMENTS:
            match pid:
                case ("storage", Global(name), str(key), str(), int(count), *rest) if (
                    _is_key(key) and _are_sizes((count,)) and rest in ([], [None])
                ):
                    if dtype := STORAGES.get(name.removeprefix("torch.")):
                        return self._storage(TorchStorage(key, dtype, count))
        raise PickleError("BINPERSID of what is not a storage as torch.save names it")

    def _storage(self, storage: TorchStorage) -> TorchStorage:
        known = self.storages.setdefault(storage.key, storage)
        if known != storage:
            raise PickleError(
                f"storage {storage.key} holds {storage.count} {storage.dtype}; before it held {known.count} "
                f"{known.dtype}"
            )
        return known


def _protocol(machine: Any) -> None:
    if (protocol := machine.read(1)[0]) > _PROTOCOL:
        raise PickleError(f"pickle protocol {protocol}; must be {_PROTOCOL}, that of torch.save")
    machine.proto = protocol


def _reduce(machine: Any) -> None:
    arguments, function = machine.stack.pop(), machine.stack[-1]
    if not isinstance(function, Global) or not isinstance(arguments, tuple):
        raise PickleError("REDUCE of what is no function and its arguments")
    # Arguments may be shared: how many there are is looked at first.
    meaning = _FUNCTIONS.get(function.name)
    value = meaning(arguments) if meaning and len(arguments) <= _MAX_ARGUMENTS else None
    if value is None:
        raise PickleError(f"REDUCE {function.name} with other arguments than torch.save gives it")
    machine.stack[-1] = value


def _build(machine: Any) -> None:
    """A state is of use to an OrderedDict alone: state_dict() notes there of which version modules are."""
    state, target = machine.stack.pop(), machine.stack[-1]
    is_metadata = isinstance(state, dict) and len(state) == 1 and "_metadata" in state
    if not isinstance(target, Ordered) or not is_metadata:
        raise PickleError("BUILD of what is not the _metadata of a state_dict")


def _set_one(machine: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _set(machine.stack[-1], [key, value])


def _set_many(machine: Any) -> None:
    values = machine.pop_mark()
    _set(machine.stack[-1], values)


def _set(target: Any, values: list[Any]) -> None:
    """Keys are strings: the hash of tuples that share parts could take for ever."""
    if not isinstance(target, dict):
        raise PickleError("adds to what is no dict")
    if len(values) % 2:
        raise PickleError("a key without its value")
    for key, value in zip(values[::2], values[1::2], strict=True):
        if type(key) is not str:
            raise PickleError(f"a key of type {type(key).__name__.lower()}; must be a string")
        if key in target:
            raise PickleError(f"the key {shown(key)} is there twice")
        target[key] = value


# GLOBAL and BINPERSID call find_class and persistent_load.
_AS_THEY_ARE = (
    pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1,
    pickle.BINFLOAT, pickle.BINUNICODE, pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.EMPTY_TUPLE,
    pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.APPEND, pickle.APPENDS, pickle.MARK,
    pickle.BINGET, pickle.LONG_BINGET, pickle.BINPUT, pickle.LONG_BINPUT, pickle.GLOBAL, pickle.BINPERSID,
    pickle.STOP,
)  # fmt: skip
_OPERATIONS: dict[int, Callable[[Any], None]] = {
    **{code[0]: pickle._Unpickler.dispatch[code[0]] for code in _AS_THEY_ARE},
    pickle.PROTO[0]: _protocol,
    pickle.REDUCE[0]: _reduce,
    pickle.BUILD[0]: _build,
    pickle.SETITEM[0]: _set_one,
    pickle.SETITEMS[0]: _set_many,
}


class _Operations(dict[int, Callable[[Any], None]]):
    """The operations that are allowed, by opcode; counts them. code, position: of the last one."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(_OPERATIONS)
        self._file = file
        self._count = self.code = self.position = 0

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        self.code, self.position = code, self._file.tell() - 1
        self._count += 1
        if self._count > MAX_OPERATIONS:
            raise PickleError(f"more than {MAX_OPERATIONS} operations; no more are allowed")
        return super().__getitem__(code)

    def __missing__(self, code: int) -> Callable[[Any], None]:
        raise PickleError(f"opcode {_name(code)} is not one that tensors are saved with")


def _name(code: int) -> str:
    """An opcode by its name, as pickletools has it."""
    from pickletools import opcodes  # of no use to a good file

    return next((opcode.name for opcode in opcodes if opcode.code == chr(code)), f"0x{code:02x}")


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
