"""The few opcodes of pickles that torch.save writes, run over inert values: nothing is imported or called.

Format: the comments of Python's Lib/pickletools.py. A global becomes a `Global`, which is only its name; what
an application of one means, and a persistent id, is said by a `Meaning`. Other opcodes are refused by name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mindbatch.checkpoint.faults import shown

MAX_OPERATIONS = 1_000_000
"""About 28,000 tensors, in at most 300 MB of values."""

_PROTOCOL = 2  # of torch.save
_MAX_NAME_BYTES = 200
_MAX_TEXT_BYTES = 4096
_MAX_INTEGER_BYTES = 16


class PickleFault(ValueError):
    """Refusal of a pickle; the message gives the reason in one line."""


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a function or class, `module.name`; never looked up."""

    name: str


class Ordered(dict[str, Any]):
    """Stand-in for an unpickled OrderedDict."""


class Meaning(Protocol):
    """Interpreter of the names in a pickle. PickleFault for anything unexpected."""

    def named(self, name: str) -> Global: ...

    def applied(self, function: Global, arguments: tuple[Any, ...]) -> Any: ...

    def persistent(self, identity: Any) -> Any: ...


def read_pickle(data: bytes, start: int, meaning: Meaning) -> tuple[Any, int]:
    """The value of the pickle that begins at `start`, and where it ends.

    Values may share parts, so that a short pickle can stand for a tree of any size: they are not to be walked
    over deeper than is known of them, compared or printed. PickleFault, with the byte, for everything else.
    """
    machine = _Machine(data, start, meaning)
    try:
        return machine.run(), machine.position
    except PickleFault as fault:
        raise PickleFault(f"byte {machine.operation}: {fault}") from None


class _Machine:
    """stack: since the last mark; marked: the stacks below."""

    def __init__(self, data: bytes, start: int, meaning: Meaning) -> None:
        self.data, self.position, self.operation = data, start, start
        self.meaning = meaning
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(MAX_OPERATIONS):
            self.operation = self.position
            code = self.take(1)
            if code == b".":
                return self._result()
            operation = _OPERATIONS.get(code)
            if operation is None:
                raise PickleFault(f"opcode {_name(code)} is not one that tensors are saved with")
            operation(self)
        raise PickleFault(f"more than {MAX_OPERATIONS} operations; no more are allowed")

    def _result(self) -> Any:
        if self.marked or len(self.stack) != 1:
            raise PickleFault("must end with one value")
        return self.stack[0]

    def take(self, count: int) -> bytes:
        """The next bytes of the pickle."""
        end = self.position + count
        if end > len(self.data):
            raise PickleFault("truncated")
        content = self.data[self.position : end]
        self.position = end
        return content

    def number(self, layout: str) -> Any:
        """The next number, as `struct` names its form."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def line(self) -> str:
        """The next line, a part of a name."""
        end = self.data.find(b"\n", self.position, self.position + _MAX_NAME_BYTES + 1)
        if end < 0:
            raise PickleFault(f"a name without an end, or of more than {_MAX_NAME_BYTES} bytes")
        line = self.take(end - self.position)
        self.position += 1
        return _text(line)

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack:
            raise PickleFault("takes a value where there is none")
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        """The values since the last mark, which is removed."""
        if not self.marked:
            raise PickleFault("takes a mark where there is none")
        values, self.stack = self.stack, self.marked.pop()
        return values

    def pop_many(self, count: int) -> tuple[Any, ...]:
        return tuple(reversed([self.pop() for _ in range(count)]))

    def top(self, kind: type[Any], what: str) -> Any:
        """The last value, left where it is."""
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise PickleFault(f"adds to what is no {what}")
        return self.stack[-1]


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise PickleFault(f"{shown(data[:40])} is not UTF-8 text") from None


def _name(code: bytes) -> str:
    """An opcode by its name, as pickletools has it."""
    from pickletools import opcodes  # of no use to a good file

    known = (opcode.name for opcode in opcodes if opcode.code == code.decode("latin-1"))
    return next(known, f"0x{code[0]:02x}")


def _protocol(machine: _Machine) -> None:
    if (protocol := machine.number("B")) > _PROTOCOL:
        raise PickleFault(f"pickle protocol {protocol}; must be {_PROTOCOL}, that of torch.save")


def _string(machine: _Machine) -> None:
    length = machine.number("<I")
    if length > _MAX_TEXT_BYTES:
        raise PickleFault(f"a string of {length} bytes; at most {_MAX_TEXT_BYTES} are allowed")
    machine.push(_text(machine.take(length)))


def _long(machine: _Machine) -> None:
    length = machine.number("B")
    if length > _MAX_INTEGER_BYTES:
        raise PickleFault(f"an integer of {length} bytes; at most {_MAX_INTEGER_BYTES} are allowed")
    machine.push(int.from_bytes(machine.take(length), "little", signed=True))


def _global(machine: _Machine) -> None:
    module, name = machine.line(), machine.line()
    machine.push(machine.meaning.named(f"{module}.{name}"))


def _mark(machine: _Machine) -> None:
    machine.marked.append(machine.stack)
    machine.stack = []


def _get(machine: _Machine, key: int) -> None:
    if key not in machine.memo:
        raise PickleFault(f"value {key} of the memo is not there")
    machine.push(machine.memo[key])


def _put(machine: _Machine, key: int) -> None:
    if not machine.stack:
        raise PickleFault("notes a value where there is none")
    machine.memo[key] = machine.stack[-1]


def _reduce(machine: _Machine) -> None:
    function, arguments = machine.pop_many(2)
    if not isinstance(function, Global) or not isinstance(arguments, tuple):
        raise PickleFault("REDUCE of what is no function and its arguments")
    machine.push(machine.meaning.applied(function, arguments))


def _build(machine: _Machine) -> None:
    """A state is of use to an OrderedDict alone: state_dict() notes there of which version modules are."""
    target, state = machine.pop_many(2)
    is_metadata = isinstance(state, dict) and len(state) == 1 and "_metadata" in state
    if not isinstance(target, Ordered) or not is_metadata:
        raise PickleFault("BUILD of what is not the _metadata of a state_dict")
    machine.push(target)


def _append(machine: _Machine, values: list[Any]) -> None:
    machine.top(list, "list").extend(values)


def _set(machine: _Machine, values: list[Any]) -> None:
    target = machine.top(dict, "dict")
    if len(values) % 2:
        raise PickleFault("a key without its value")
    for key, value in zip(values[::2], values[1::2], strict=True):
        if type(key) is not str:
            raise PickleFault(f"a key of type {type(key).__name__.lower()}; must be a string")
        if key in target:
            raise PickleFault(f"the key {shown(key)} is there twice")
        target[key] = value


_OPERATIONS: Mapping[bytes, Callable[[_Machine], None]] = {
    b"\x80": _protocol,
    b"(": _mark,
    b"N": lambda machine: machine.push(None),
    b"\x88": lambda machine: machine.push(True),
    b"\x89": lambda machine: machine.push(False),
    b"K": lambda machine: machine.push(machine.number("B")),
    b"M": lambda machine: machine.push(machine.number("<H")),
    b"J": lambda machine: machine.push(machine.number("<i")),
    b"\x8a": _long,
    b"G": lambda machine: machine.push(machine.number(">d")),
    b"X": _string,
    b"]": lambda machine: machine.push([]),
    b"}": lambda machine: machine.push({}),
    b")": lambda machine: machine.push(()),
    b"\x85": lambda machine: machine.push(machine.pop_many(1)),
    b"\x86": lambda machine: machine.push(machine.pop_many(2)),
    b"\x87": lambda machine: machine.push(machine.pop_many(3)),
    b"t": lambda machine: machine.push(tuple(machine.pop_to_mark())),
    b"a": lambda machine: _append(machine, [machine.pop()]),
    b"e": lambda machine: _append(machine, machine.pop_to_mark()),
    b"s": lambda machine: _set(machine, [*machine.pop_many(2)]),
    b"u": lambda machine: _set(machine, machine.pop_to_mark()),
    b"h": lambda machine: _get(machine, machine.number("B")),
    b"j": lambda machine: _get(machine, machine.number("<I")),
    b"q": lambda machine: _put(machine, machine.number("B")),
    b"r": lambda machine: _put(machine, machine.number("<I")),
    b"c": _global,
    b"R": _reduce,
    b"b": _build,
    b"Q": lambda machine: machine.push(machine.meaning.persistent(machine.pop())),
}
