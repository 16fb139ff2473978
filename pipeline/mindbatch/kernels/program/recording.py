"""Recording what a model's cells call, with symbols in place of a step's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mindbatch.kernels.arrays import Array
from mindbatch.kernels.layer import Layer, Operation
from mindbatch.kernels.native_functions import Infer, Settings

ROWS = -1
"""In a symbol's shape: a size that each step has its own of, as its number of tokens."""


@dataclass(frozen=True, eq=False)
class Symbol:
    """An array of every step. Those that calls write have ROWS as their first size, and no other."""

    recording: Recording
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Call:
    """A function of the library, what it reads, settings included, and what it writes."""

    function: str
    inputs: tuple[Symbol | Array, ...]
    outputs: tuple[Symbol, ...]


@dataclass(frozen=True, eq=False)
class Recording:
    """Calls in their order.

    inputs: what each step brings. outputs: what is asked of it.
    """

    inputs: list[Symbol] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: list[Symbol] = field(default_factory=list)

    def input(self, columns: Sequence[int], dtype: npt.DTypeLike) -> Symbol:
        """An array [rows, *columns] that each step brings."""
        symbol = Symbol(self, (ROWS, *columns), np.dtype(dtype))
        self.inputs.append(symbol)
        return symbol


class RecordedCell(Layer):
    """Adds a call to the recording of the symbols that it is given."""

    def __init__(self, function: str, shape: Infer, dtype: Infer, settings: Settings | None) -> None:
        self.function, self.shape, self.dtype = function, shape, dtype
        self.settings = () if settings is None else (settings,)

    def construct(self, *inputs: Symbol | Array) -> Any:
        given = (*inputs, *self.settings)
        recording = next(each.recording for each in given if isinstance(each, Symbol))
        shapes = self.shape(*(list(each.shape) for each in given))
        types = self.dtype(*(each.dtype for each in given))
        several = isinstance(shapes, tuple)
        pairs = zip(shapes, types, strict=True) if several else [(shapes, types)]
        outputs = tuple(Symbol(recording, tuple(shape), dtype) for shape, dtype in pairs)
        recording.calls.append(Call(self.function, given, outputs))
        return outputs if several else outputs[0]


def recorded(layer: Operation, recording: Recording, *inputs: Any) -> Recording:
    """The recording, with what a layer over RecordedCells calls for inputs of symbols.

    The layer gives a symbol, or several.
    """
    found = layer(*inputs)
    recording.outputs.extend(found if isinstance(found, tuple) else (found,))
    return recording
