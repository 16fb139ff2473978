"""Python's own machine for pickles, left with the few opcodes of torch.save, over inert values.

Nothing is imported or called: a global becomes a `Global`, which is only its name. What an application of one
means, and a persistent id, a subclass says. Other opcodes are refused by name.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from mindbatch.checkpoint.faults import shown

MAX_OPERATIONS = 1_000_000
"""About 28,000 tensors, in at most 300 MB of values."""

_PROTOCOL = 2  # of torch.save


class PickleFault(ValueError):
    """Refusal of a pickle; the message gives the reason in one line."""


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a function or class, `module.name`; never looked up."""

    name: str


class Ordered(dict[str, Any]):
    """Stand-in for an unpickled OrderedDict."""


# What the library raises for values that are missing, of another type, or cut off.
_LIBRARY_FAULTS = (pickle.UnpicklingError, struct.error, ValueError, AttributeError, LookupError, TypeError)


class InertUnpickler(pickle._Unpickler):
    """Reads one pickle of a file. Subclasses have find_class, persistent_load and `applied`.

    It is the class in Python, not that in C, which makes room for as many notes as a pickle says it has.
    """

    dispatch: _Operations  # type: ignore[misc]
    stack: list[Any]  # since the last mark
    metastack: list[list[Any]]  # the stacks below

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file)
        self.dispatch = _Operations(file)

    def applied(self, function: Global, arguments: tuple[Any, ...]) -> Any:
        """Gives the value of an application. PickleFault for anything unexpected."""
        raise NotImplementedError

    def load(self) -> Any:
        """The value of the pickle. PickleFault, with the byte, for what is not right.

        Values may share parts, so that a short pickle can stand for a tree of any size: they are not to be
        walked over deeper than is known of them, compared or printed.
        """
        try:
            value = super().load()
            if self.stack or self.metastack:
                raise PickleFault("must end with one value")
            return value
        except EOFError:
            raise PickleFault("truncated") from None
        except PickleFault as fault:
            raise PickleFault(f"byte {self.dispatch.position}: {fault}") from None
        except _LIBRARY_FAULTS as error:
            place, code = self.dispatch.position, _name(self.dispatch.code)
            raise PickleFault(f"byte {place}: opcode {code} cannot be carried out ({error})") from None


def _protocol(machine: Any) -> None:
    if (protocol := machine.read(1)[0]) > _PROTOCOL:
        raise PickleFault(f"pickle protocol {protocol}; must be {_PROTOCOL}, that of torch.save")
    machine.proto = protocol


def _reduce(machine: Any) -> None:
    arguments, function = machine.stack.pop(), machine.stack[-1]
    if not isinstance(function, Global) or not isinstance(arguments, tuple):
        raise PickleFault("REDUCE of what is no function and its arguments")
    machine.stack[-1] = machine.applied(function, arguments)


def _build(machine: Any) -> None:
    """A state is of use to an OrderedDict alone: state_dict() notes there of which version modules are."""
    state, target = machine.stack.pop(), machine.stack[-1]
    is_metadata = isinstance(state, dict) and len(state) == 1 and "_metadata" in state
    if not isinstance(target, Ordered) or not is_metadata:
        raise PickleFault("BUILD of what is not the _metadata of a state_dict")


def _set_one(machine: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _set(machine.stack[-1], [key, value])


def _set_many(machine: Any) -> None:
    values = machine.pop_mark()
    _set(machine.stack[-1], values)


def _set(target: Any, values: list[Any]) -> None:
    """Keys are strings: the hash of tuples that share parts could take for ever."""
    if not isinstance(target, dict):
        raise PickleFault("adds to what is no dict")
    if len(values) % 2:
        raise PickleFault("a key without its value")
    for key, value in zip(values[::2], values[1::2], strict=True):
        if type(key) is not str:
            raise PickleFault(f"a key of type {type(key).__name__.lower()}; must be a string")
        if key in target:
            raise PickleFault(f"the key {shown(key)} is there twice")
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
            raise PickleFault(f"more than {MAX_OPERATIONS} operations; no more are allowed")
        return super().__getitem__(code)

    def __missing__(self, code: int) -> Callable[[Any], None]:
        raise PickleFault(f"opcode {_name(code)} is not one that tensors are saved with")


def _name(code: int) -> str:
    """An opcode by its name, as pickletools has it."""
    from pickletools import opcodes  # of no use to a good file

    return next((opcode.name for opcode in opcodes if opcode.code == chr(code)), f"0x{code:02x}")
