"""How many bytes the weights of a network of MindFormers take on a rank: what is built says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mindspore import nn


@dataclass(frozen=True)
class WeightBytes:
    """Of each layer, and of all that is outside of layers."""

    layer_bytes: list[int]
    other_bytes: int


def weight_bytes(
    network: nn.Cell, layers: nn.CellList, is_cache: Callable[[str], bool] = lambda name: False
) -> WeightBytes:
    """layers: those of the network. is_cache: of the name of a parameter that is no weight."""
    sizes = [_nbytes(layer, is_cache) for layer in layers]
    return WeightBytes(sizes, _nbytes(network, is_cache) - sum(sizes))


def _nbytes(cell: nn.Cell, is_cache: Callable[[str], bool]) -> int:
    return sum(each.nbytes for name, each in cell.parameters_and_names() if not is_cache(name))
