"""A recording as a program of the C++ library: calls fused, over memory of its own."""

from __future__ import annotations

import ctypes
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mindbatch.kernels.arrays import CACHE_LINE, Array, aligned_zeros
from mindbatch.kernels.native_codes import PANEL
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.recording import ROWS, RecordedCall, Recording, Symbol

PRODUCT = "mb_linear"
ROW_BY_ROW = ("mb_norm", "mb_add_norm", "mb_activation")
"""Functions whose first output may be computed so: see csrc/fused_ops.cpp."""


def fused(recording: Recording) -> Recording:
    """The recording, with one call for each norm or activation and the product behind it.

    So its rows are not written to memory and read again, and threads wait for one another once less. A row's
    bits are the same. An output that others read too, or that the recording gives, is computed by a call of
    its own.
    """
    return replace(recording, calls=[*_fused_calls(recording)])


def _fused_calls(recording: Recording) -> Iterator[RecordedCall]:
    reads = Counter(
        symbol for call in recording.calls for symbol in call.inputs if isinstance(symbol, Symbol)
    )
    # What a recording gives is read by its caller, and must be written.
    reads.update(recording.outputs)
    before: RecordedCall | None = None
    for call in recording.calls:
        if before is not None and _is_read_by_one(before, call, reads):
            before = _joined(before, call)
            continue
        if before is not None:
            yield before
        before = call
    if before is not None:
        yield before


def _is_read_by_one(first: RecordedCall, product: RecordedCall, reads: Counter[Symbol]) -> bool:
    if first.operation not in ROW_BY_ROW or not product.operation.startswith(PRODUCT):
        return False
    return product.inputs[0] is first.outputs[0] and reads[first.outputs[0]] == 1


def _joined(first: RecordedCall, product: RecordedCall) -> RecordedCall:
    """The outputs are those of the first that remain, then the product's."""
    name = first.operation + product.operation.removeprefix("mb")
    return RecordedCall(name, (*first.inputs, *product.inputs[1:]), (*first.outputs[1:], *product.outputs))


HEAD = "mb_head"


def summarised(recording: Recording) -> Recording:
    """The recording of a head, with a summary [rows, 2, panels] of its logits as one more output.

    As it is where the logits are no product's: what is computed of one (caps, factors, other ranks' logits),
    changes what a summary says.
    """
    *before, last = recording.calls
    [*_, logits] = recording.outputs
    if not last.operation.startswith(PRODUCT) or last.outputs != (logits,):
        return recording
    summary = Symbol(recording, (ROWS, 2, -(-logits.shape[1] // PANEL)), np.dtype(np.float32))
    head = replace(last, operation=last.operation.replace(PRODUCT, HEAD), outputs=(logits, summary))
    return replace(recording, calls=[*before, head], outputs=[*recording.outputs, summary])


@dataclass(frozen=True)
class Buffers:
    """offsets: in bytes for each row of a step: in a step of n rows an array begins at n times that.
    row_bytes: of all buffers together, for each row."""

    offsets: Mapping[Symbol, int]
    row_bytes: int


@dataclass(frozen=True)
class _Use:
    """The calls from which to which a symbol's memory is its own; `size` bytes a row."""

    symbol: Symbol
    first: int
    last: int
    size: int

    def overlaps(self, other: _Use) -> bool:
        return self.first <= other.last and other.first <= self.last


def row_bytes(symbol: Symbol) -> int:
    """Bytes of a row of what a call writes."""
    return math.prod(symbol.shape[1:]) * symbol.dtype.itemsize


def plan_buffers(recording: Recording) -> Buffers:
    """Assigns the lowest free offset to each symbol that calls write, but for the recording's outputs."""
    assigned: list[tuple[int, _Use]] = []
    for use in _uses(recording):
        offset = 0
        # From the lowest on, so that one pass finds the first gap that is wide enough.
        for taken, other in sorted(assigned, key=lambda pair: pair[0]):
            if use.overlaps(other) and taken < offset + use.size:
                offset = max(offset, taken + other.size)
        assigned.append((offset, use))
    total = max((offset + use.size for offset, use in assigned), default=0)
    return Buffers({use.symbol: offset for offset, use in assigned}, total)


def _uses(recording: Recording) -> Iterator[_Use]:
    """In the order of calls. Sizes are whole cache lines, so that every array begins with one."""
    last = {
        symbol: index
        for index, call in enumerate(recording.calls)
        for symbol in call.inputs
        if isinstance(symbol, Symbol)
    }
    for index, call in enumerate(recording.calls):
        for symbol in call.outputs:
            if symbol not in recording.outputs:
                size = -(-row_bytes(symbol) // CACHE_LINE) * CACHE_LINE
                yield _Use(symbol, index, last.get(symbol, index), size)


_REFERENCES_OF_OURS = 2  # the attribute, and the argument of getrefcount


class OutputMemory:
    """Arrays for one output of a program, of as many rows as each step has.

    The memory of the last one serves for the next, unless somebody still has that array or a view of it.

    address: of the array that was made last.
    """

    def __init__(self, symbol: Symbol) -> None:
        self._columns, self._dtype = symbol.shape[1:], symbol.dtype
        self._memory = np.empty(0, self._dtype)
        self.address = self._memory.ctypes.data

    def array(self, rows: int) -> Array:
        """Makes an array [rows, ...] whose content is undefined."""
        size = rows * math.prod(self._columns)
        if size > len(self._memory) or sys.getrefcount(self._memory) > _REFERENCES_OF_OURS:
            self._memory = np.empty(size, self._dtype)  # every view of it refers to it
            self.address = self._memory.ctypes.data
        return self._memory[:size].reshape(rows, *self._columns)


DIMENSIONS = 4  # kMostDimensions in csrc/program.h


class ArrayTable:
    """Inputs come first, then outputs, buffers, and what every step has: parameters and settings."""

    def __init__(
        self, recording: Recording, offsets: Mapping[Symbol, int], memory: Sequence[OutputMemory]
    ) -> None:
        """offsets: see `Buffers`. memory: of each output."""
        self._memory = memory
        symbols = [*recording.inputs, *recording.outputs, *offsets]
        assert len({*symbols}) == len(symbols), "a program's own calls must write its outputs"
        every = [array for call in recording.calls for array in call.inputs if isinstance(array, np.ndarray)]
        self._same = {id(array): array for array in every}  # and kept alive
        self._numbers = {identity: number for number, identity in enumerate([*map(id, symbols), *self._same])}
        shapes = [*(symbol.shape for symbol in symbols), *(array.shape for array in self._same.values())]
        self.shapes = np.array([(*shape, *[1] * (DIMENSIONS - len(shape))) for shape in shapes], np.int64)
        self.dimensions = np.array([len(shape) for shape in shapes], np.int32)
        self.addresses = np.zeros(len(shapes), np.uintp)
        inputs, arguments = len(recording.inputs), len(recording.inputs) + len(recording.outputs)
        self._inputs, self._outputs = slice(0, inputs), slice(inputs, arguments)
        self._written, self._buffers = slice(inputs, len(symbols)), slice(arguments, len(symbols))
        self._input_shapes: list[tuple[int, ...]] = [()] * inputs
        self._step = (0, 0)
        self._offsets = np.array([*offsets.values()], np.uintp)
        self.addresses[len(symbols) :] = [array.ctypes.data for array in self._same.values()]

    def operands(self, call: RecordedCall) -> list[int]:
        """The numbers of what a call reads and writes."""
        return [self._numbers[id(operand)] for operand in (*call.inputs, *call.outputs)]

    def outputs(self, rows: int) -> list[Array]:
        """Arrays for what a step of so many rows gives; nobody else has them."""
        return [memory.array(rows) for memory in self._memory]

    def set_step(self, inputs: Sequence[Array], memory: int, rows: int) -> None:
        """Sets what differs between steps, and from the step before. memory: where the buffers begin.

        Outputs are those that `outputs` gave last.
        """
        assert len(inputs) == len(self._input_shapes), "each input of the recording"
        for number, array in enumerate(inputs):
            if array.shape != self._input_shapes[number]:
                self._input_shapes[number] = array.shape
                self.shapes[number, : array.ndim] = array.shape
        self.addresses[self._inputs] = [array.ctypes.data for array in inputs]
        self.addresses[self._outputs] = [output.address for output in self._memory]
        if self._step != (memory, rows):
            self._step = memory, rows
            self.addresses[self._buffers] = self._offsets * np.uintp(rows) + np.uintp(memory)
            self.shapes[self._written, 0] = rows


class _Calls(ctypes.Structure):
    """`NativeProgram` of csrc/program.h."""

    _fields_ = [
        ("calls", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("functions", "first", "operands")),
        *((name, ctypes.c_void_p) for name in ("addresses", "shapes", "dimensions")),
    ]


class NativeProgram:
    """Runs what was recorded; one thread at a time."""

    def __init__(
        self,
        recording: Recording,
        library: NativeLibrary,
        outputs: Sequence[OutputMemory] | None = None,
        functions: Mapping[str, Any] | None = None,
    ) -> None:
        """outputs: memory of what it gives, where it shares that with other programs.

        functions: ctypes' `EntryPoint`s of csrc/program.h that replace the library's of these names.
        """
        recording = fused(recording)
        self._functions = [call.operation for call in recording.calls]
        self._run = library.run_program
        self._buffers = plan_buffers(recording)
        outputs = outputs or [OutputMemory(symbol) for symbol in recording.outputs]
        self._table = ArrayTable(recording, self._buffers.offsets, outputs)
        self._memory = aligned_zeros((0,), np.dtype(np.uint8))
        self._address = self._memory.ctypes.data
        operands = [self._table.operands(call) for call in recording.calls]
        self._lists = (
            np.array([library.address_of(name, functions) for name in self._functions], np.uintp),
            np.cumsum([0, *map(len, operands)], dtype=np.int32),
            np.array([number for numbers in operands for number in numbers], np.int32),
        )
        arrays = (*self._lists, self._table.addresses, self._table.shapes, self._table.dimensions)
        self._calls = _Calls(len(operands), *(array.ctypes.data for array in arrays))

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs [rows, ...], which nobody else has, for inputs of which the first has so many rows.

        Raises:
            RuntimeError: a function has refused what it was given, or a rank that it waits for has gone.
        """
        rows = len(inputs[0])
        inputs = [np.ascontiguousarray(array) for array in inputs]
        outputs = self._table.outputs(rows)
        if rows == 0:
            return outputs
        self._table.set_step(inputs, self._memory_for(rows), rows)
        if failed := self._run(ctypes.byref(self._calls)):
            raise RuntimeError(f"{self._functions[failed - 1]} failed in a step of {rows} tokens")
        return outputs

    def _memory_for(self, rows: int) -> int:
        """Address of memory for the buffers of so many rows; it grows to powers of two of them."""
        if len(self._memory) < rows * self._buffers.row_bytes:
            self._memory = aligned_zeros((0,), self._memory.dtype)  # the old one goes first
            size = self._buffers.row_bytes << (rows - 1).bit_length()
            self._memory = aligned_zeros((size,), self._memory.dtype)
            self._address = self._memory.ctypes.data
        return self._address
