"""A recorded program over memory of its own, run by the C++ library for any number of rows."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mindbatch.kernels.arrays import Array, aligned_zeros
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.program.buffers import OutputMemory, plan_buffers
from mindbatch.kernels.program.fusion import fused
from mindbatch.kernels.recording import RecordedCall, Recording, Symbol

DIMENSIONS = 4  # kMostDimensions in csrc/program.h


class ArrayTable:
    """Inputs come first, then outputs, buffers, and what every step has: parameters and settings."""

    def __init__(
        self, recording: Recording, offsets: Mapping[Symbol, int], memory: Sequence[OutputMemory]
    ) -> None:
        """offsets: see `Buffers`. memory: of each output."""
        self._memory = memory
        symbols = [*recording.inputs, *recording.outputs, *offsets]
        assert len({*symbols}) == len(symbols), "what a program is asked for, its own calls must write"
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
        self._placed = (0, 0)
        self._offsets = np.array([*offsets.values()], np.uintp)
        self.addresses[len(symbols) :] = [array.ctypes.data for array in self._same.values()]

    def operands(self, call: RecordedCall) -> list[int]:
        """The numbers of what a call reads and writes."""
        return [self._numbers[id(operand)] for operand in (*call.inputs, *call.outputs)]

    def outputs(self, rows: int) -> list[Array]:
        """Arrays for what a step of so many rows gives; nobody else has them."""
        return [memory.array(rows) for memory in self._memory]

    def place(self, inputs: Sequence[Array], memory: int, rows: int) -> None:
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
        if self._placed != (memory, rows):
            self._placed = memory, rows
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

        functions: ctypes' `EntryPoint`s of csrc/program.h in place of the library's of these names.
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
        self._table.place(inputs, self._memory_for(rows), rows)
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
