"""Recording what a model's cells call, with symbols in place of a step's arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn

from mindbatch.kernels.arrays import Array
from mindbatch.kernels.native_cells import Infer, Settings

WRITTEN_TYPES = {mindspore.float32: np.dtype(np.float32), mindspore.int32: np.dtype(np.int32)}
"""NumPy's form of each type that functions write."""

ROWS = -1
"""In a symbol's shape: a size that each step has its own of, as its number of tokens."""


@dataclass(frozen=True, eq=False)
class Symbol:
    """An array of every step. Those that calls write have ROWS as their first size, and no other.

    dtype: MindSpore's.
    """

    recording: Recording
    shape: tuple[int, ...]
    dtype: Any

    @property
    def written_type(self) -> np.dtype[Any]:
        """The dtype of NumPy's array."""
        return WRITTEN_TYPES[self.dtype]


@dataclass(frozen=True)
class Call:
    """A function of the library, what it reads, settings included, and what it writes."""

    function: str
    inputs: tuple[Symbol | Tensor | Array, ...]
    outputs: tuple[Symbol, ...]


@dataclass(frozen=True, eq=False)
class Recording:
    """Calls in their order.

    inputs: what each step brings. outputs: what is asked of it.
    """

    inputs: list[Symbol] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: list[Symbol] = field(default_factory=list)

    def input(self, columns: Sequence[int], dtype: Any) -> Symbol:
        """An array [rows, *columns] that each step brings."""
        symbol = Symbol(self, (ROWS, *columns), dtype)
        self.inputs.append(symbol)
        return symbol


class RecordedCell(nn.Cell):
    """Adds a call to the recording of the symbols that it is given."""

    def __init__(self, function: str, shape: Infer, dtype: Infer, settings: Settings | None) -> None:
        super().__init__(auto_prefix=False)
        self.function, self.shape, self.dtype = function, shape, dtype
        self.settings = () if settings is None else (settings,)

    def construct(self, *inputs: Symbol | Tensor) -> Any:
        given = (*inputs, *self.settings)
        recording = next(each.recording for each in given if isinstance(each, Symbol))
        shapes = self.shape(*(list(each.shape) for each in given))
        types = self.dtype(*(each.dtype for each in given))
        several = isinstance(shapes, tuple)
        pairs = zip(shapes, types, strict=True) if several else [(shapes, types)]
        outputs = tuple(Symbol(recording, tuple(shape), dtype) for shape, dtype in pairs)
        recording.calls.append(Call(self.function, given, outputs))
        return outputs if several else outputs[0]


def recorded(cell: Callable[..., Any], recording: Recording, *inputs: Any) -> Recording:
    """The recording, with what a cell over RecordedCells calls for inputs of symbols.

    The cell gives a symbol, or several.
    """
    with _called_at_once():
        found = cell(*inputs)
    recording.outputs.extend(found if isinstance(found, tuple) else (found,))
    return recording


@contextmanager
def _called_at_once() -> Iterator[None]:
    """Within, a cell that is called is no graph to compile: its `construct` is called."""
    mode = mindspore.get_context("mode")
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    try:
        yield
    finally:
        mindspore.set_context(mode=mode)
