"""Address and shape of every array of a program, by number, as its calls have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mindbatch.kernels.arrays import Array
from mindbatch.kernels.program.outputs import OutputMemory
from mindbatch.kernels.program.recording import Call, Recording, Symbol

DIMENSIONS = 4  # kMostDimensions in csrc/program.h


class ArrayTable:
    """Inputs come first, then outputs, buffers, and what every step has: parameters and settings."""

    def __init__(self, recording: Recording, offsets: Mapping[Symbol, int]) -> None:
        """`offsets`: see `Buffers`."""
        self._inputs, self._outputs = recording.inputs, recording.outputs
        self._memory = [OutputMemory(symbol) for symbol in self._outputs]
        symbols = [*self._inputs, *self._outputs, *offsets]
        assert len({*symbols}) == len(symbols), "what a program is asked for, its own calls must write"
        every = [each for call in recording.calls for each in call.inputs if isinstance(each, np.ndarray)]
        self._same = {id(each): each for each in every}  # and kept alive
        self._numbers = {each: number for number, each in enumerate([*map(id, symbols), *self._same])}
        shapes = [*(each.shape for each in symbols), *(each.shape for each in self._same.values())]
        self.shapes = np.array([(*shape, *[1] * (DIMENSIONS - len(shape))) for shape in shapes], np.int64)
        self.dimensions = np.array([len(shape) for shape in shapes], np.int32)
        self.addresses = np.zeros(len(shapes), np.uintp)
        self._given = len(self._inputs) + len(self._outputs)
        self._written = slice(len(self._inputs), len(symbols))
        self._buffers = slice(self._given, len(symbols))
        self._offsets = np.array([*offsets.values()], np.uintp)
        self.addresses[len(symbols) :] = [each.ctypes.data for each in self._same.values()]

    def operands(self, call: Call) -> list[int]:
        """The numbers of what a call reads and writes."""
        return [self._numbers[id(each)] for each in (*call.inputs, *call.outputs)]

    def outputs(self, rows: int) -> list[Array]:
        """Arrays for what a step of so many rows gives; nobody else has them."""
        return [memory.array(rows) for memory in self._memory]

    def place(self, inputs: Sequence[Array], outputs: Sequence[Array], memory: int, rows: int) -> None:
        """Sets what differs between steps. memory: where the buffers begin."""
        for number, array in enumerate(inputs):
            self.shapes[number, : array.ndim] = array.shape
        self.addresses[: self._given] = [array.ctypes.data for array in (*inputs, *outputs)]
        self.addresses[self._buffers] = self._offsets * np.uintp(rows) + np.uintp(memory)
        self.shapes[self._written, 0] = rows
