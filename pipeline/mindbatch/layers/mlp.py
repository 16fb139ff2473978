"""The feed-forward block, plain or gated."""

from __future__ import annotations

from mindspore import Tensor, nn

from mindbatch.kernels.interface import Kernels
from mindbatch.layers.linear import ColumnLinear, RowLinear
from mindbatch.layers.weights import Weights
from mindbatch.models.architecture import Architecture
from mindbatch.parallel.topology import TensorSlice


class Mlp(nn.Cell):
    """down(activation(up(x))); gated models hold gate and up in one matrix, the gate first."""

    def __init__(
        self, name: str, arch: Architecture, weights: Weights, kernels: Kernels, piece: TensorSlice
    ) -> None:
        super().__init__(auto_prefix=False)
        self.up = ColumnLinear(f"{name}.up", weights, kernels)
        self.activation = kernels.activation(arch.activation, arch.gated_mlp)
        self.down = RowLinear(f"{name}.down", weights, kernels, piece)

    def construct(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))
