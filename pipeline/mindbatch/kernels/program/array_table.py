"""Address and shape of every array of a program, by number, as its calls have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mindbatch.kernels.arrays import Array
from mindbatch.kernels.program.buffers import OutputMemory
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
