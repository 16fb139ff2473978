"""Calling a compiled cell without MindSpore's per-call walk over its sub-cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import Tensor, nn
from mindspore.graph.api import _cell_graph_executor

OnCompile = Callable[[int], object]


class CompiledCell:
    """A cell in graph mode, compiled once per combination of input shapes; their dtypes never change.

    nn.Cell.__call__ sets attributes on every sub-cell each time, which costs about as much as running a small
    model. The graph of a known shape is called by its name instead. (The executor is not public API; the
    pinned MindSpore version has it, and tests/numerics runs through it.)
    """

    def __init__(self, cell: nn.Cell, on_compile: OnCompile) -> None:
        """`on_compile` is called with the rows of the first input before a compilation, with 0 after."""
        self._cell = cell.set_train(False)
        self._on_compile = on_compile
        self._phases: dict[tuple[tuple[int, ...], ...], str] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        """The cell's output, a tensor or a tuple; compiles on the first call with these shapes."""
        shapes = tuple(tensor.shape for tensor in inputs)
        phase = self._phases.get(shapes)
        if phase is None:
            self._on_compile(shapes[0][0])
            output = self._cell(*inputs)
            self._on_compile(0)
            self._phases[shapes] = self._cell.current_phase
            return output
        return _cell_graph_executor._exec_pip(self._cell, *inputs, phase=phase)
