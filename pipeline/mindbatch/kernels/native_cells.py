"""How a function of the C++ library becomes a cell of a MindSpore graph that calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore
from mindspore import Tensor, nn, ops

from mindbatch.kernels.native_functions import FLOAT, Infer, MakeCell, Settings
from mindbatch.kernels.tensors import constant


class GraphCell(nn.Cell):
    """Calls one function of the library; `settings` is passed as its last input."""

    def __init__(self, function: str, shape: Infer, dtype: Infer, settings: Tensor) -> None:
        super().__init__()
        self.operator = ops.Custom(function, shape, dtype, "aot")
        self.settings = settings

    def construct(self, *inputs: Tensor) -> Any:
        return self.operator(*inputs, self.settings)


class PlainGraphCell(nn.Cell):
    """Calls one function of the library that has no settings."""

    def __init__(self, function: str, shape: Infer, dtype: Infer) -> None:
        super().__init__()
        self.operator = ops.Custom(function, shape, dtype, "aot")

    def construct(self, *inputs: Tensor) -> Any:
        return self.operator(*inputs)


def graph_cells(library: Path) -> MakeCell:
    """Makes cells that MindSpore compiles."""

    def make(name: str, shape: Infer, dtype: Infer, settings: Settings | None) -> nn.Cell:
        function, types = f"{library}:{name}", _of_graphs(dtype)
        if settings is None:
            return PlainGraphCell(function, shape, types)
        return GraphCell(function, shape, types, constant(settings, settings.dtype))

    return make


def _of_graphs(dtype: Infer) -> Infer:
    """The same with MindSpore's dtypes."""

    def infer(*types: Any) -> Any:
        found = dtype(*types)
        return tuple(map(_of_graph, found)) if isinstance(found, tuple) else _of_graph(found)

    return infer


def _of_graph(dtype: Any) -> Any:
    return mindspore.float32 if dtype is FLOAT else dtype
