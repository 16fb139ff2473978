"""Bytes of a rank's weights in a network of MindFormers, counted on the network as built."""

from __future__ import annotations

from dataclasses import dataclass

from mindspore import nn


@dataclass(frozen=True)
class WeightBytes:
    """Bytes of the weights of each layer, and of all that is outside of layers."""

    layer_bytes: list[int]
    other_bytes: int


def weight_bytes(network: nn.Cell, layers: nn.CellList) -> WeightBytes:
    """layers: those of the network."""
    sizes = [*map(_nbytes, layers)]
    return WeightBytes(sizes, _nbytes(network) - sum(sizes))


def _nbytes(cell: nn.Cell) -> int:
    return sum(each.nbytes for _, each in cell.parameters_and_names())
