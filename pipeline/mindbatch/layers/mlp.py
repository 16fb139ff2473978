"""The feed-forward block, plain or gated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.layer import Layer, Operation
from mindbatch.layers.linear import ColumnLinear, RowLinear
from mindbatch.layers.weights import Weights
from mindbatch.parallel.topology import TensorSlice

if TYPE_CHECKING:
    from mindspore import Tensor


class Mlp(Layer):
    """down(activation(up(x))); gated models hold gate and up in one matrix, the gate first.

    after: as of `SelfAttention`.
    """

    def __init__(
        self,
        name: str,
        activation: Operation,
        weights: Weights,
        kernels: Kernels,
        shard: TensorSlice,
        after: Operation | None = None,
    ) -> None:
        self.up = ColumnLinear(f"{name}.up", weights, kernels)
        self.activation = activation
        self.down = RowLinear(f"{name}.down", weights, kernels, shard)
        self.after = after

    def construct(self, x: Tensor, adapters: tuple[Tensor, ...]) -> Tensor:
        output = self.down(self.activation(self.up(x, adapters)), adapters)
        return output if self.after is None else self.after(output)
