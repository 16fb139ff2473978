"""How a function of the C++ library becomes a cell: by default one of a MindSpore graph that calls it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import numpy.typing as npt
from mindspore import Tensor, nn, ops

from mindbatch.kernels.arrays import constant

Settings = npt.NDArray[np.int32] | npt.NDArray[np.float32]
Infer = Callable[..., Any]
"""From the shapes (or dtypes) of a function's inputs, its settings included, to those of its outputs."""

MakeCell = Callable[[str, Infer, Infer, Settings | None], nn.Cell]
"""From a function's name, what gives its outputs' shapes and dtypes, and its last input, which never changes,
to the cell of its other inputs."""


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
        function = f"{library}:{name}"
        if settings is None:
            return PlainGraphCell(function, shape, dtype)
        return GraphCell(function, shape, dtype, constant(settings, settings.dtype))

    return make


def first_type(*types: Any) -> Any:
    """The output has the first input's dtype."""
    return types[0]


def second_type(*types: Any) -> Any:
    """The output has the second input's dtype."""
    return types[1]


def float32(*types: Any) -> Any:
    """The output has the kernels' dtype."""
    return mindspore.float32
