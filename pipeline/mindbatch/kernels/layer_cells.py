"""Layers as MindSpore's cells, for whoever compiles them."""

from __future__ import annotations

from typing import Any

from mindspore import nn

from mindbatch.kernels.layer import Layer


def as_cell(layer: Any) -> nn.Cell:
    """A cell that computes what the layer does, of the same tensors; so are the layers in it.

    What is no layer is a cell or an operator of MindSpore already.
    """
    if not isinstance(layer, Layer):
        return layer
    cell = _cell_type(type(layer))()
    for name, value in vars(layer).items():
        setattr(cell, name, _converted(value))
    return cell


def _converted(value: Any) -> Any:
    return nn.CellList([*map(as_cell, value)]) if isinstance(value, list) else as_cell(value)


def _cell_type(kind: type[Layer]) -> type:
    """MindSpore reads the source of `construct`, so it has to be the very function of the layer."""

    def __init__(self: nn.Cell) -> None:
        nn.Cell.__init__(self, auto_prefix=False)

    return type(kind.__name__, (nn.Cell,), {"__init__": __init__, "construct": kind.construct})
