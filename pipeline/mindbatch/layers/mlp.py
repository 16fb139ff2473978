"""The feed-forward block, plain or gated."""

from __future__ import annotations

from mindspore import Tensor, nn

from mindbatch.kernels.interface import Kernels
from mindbatch.layers.linear import ColumnLinear, RowLinear
from mindbatch.layers.weights import Weights
from mindbatch.parallel.topology import TensorSlice


class Mlp(nn.Cell):
    """down(activation(up(x))); gated models hold gate and up in one matrix, the gate first."""

    def __init__(
        self, name: str, activation: nn.Cell, weights: Weights, kernels: Kernels, shard: TensorSlice
    ) -> None:
        super().__init__(auto_prefix=False)
        self.up = ColumnLinear(f"{name}.up", weights, kernels)
        self.activation = activation
        self.down = RowLinear(f"{name}.down", weights, kernels, shard)

    def construct(self, x: Tensor, adapters: tuple[Tensor, ...]) -> Tensor:
        return self.down(self.activation(self.up(x, adapters)), adapters)
