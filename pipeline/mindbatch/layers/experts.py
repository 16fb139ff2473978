"""The feed-forward block of a mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.layer import Layer, Operation
from mindbatch.kernels.shapes import ExpertsShape
from mindbatch.layers.weights import Weights
from mindbatch.parallel.topology import TensorSlice

if TYPE_CHECKING:
    from mindspore import Tensor


class Experts(Layer):
    """The weighted sum of the experts that each row of x [T, hidden_size] chooses.

    Each rank holds a slice of every expert's inner size, and all of the router. shared: networks whose
    outputs are added for every row.
    """

    def __init__(
        self,
        name: str,
        shape: ExpertsShape,
        weights: Weights,
        kernels: Kernels,
        shard: TensorSlice,
        shared: Sequence[Operation] = (),
    ) -> None:
        self.router = weights.get(f"{name}.router.weight")
        self.correction = weights.optional(f"{name}.router.correction")
        self.up, self.down = weights.get(f"{name}.up.weight"), weights.get(f"{name}.down.weight")
        self.operator = kernels.experts(shape)
        self.reduce = kernels.all_reduce(shard)
        self.shared = [*shared]
        self.total = kernels.sum()

    def construct(self, x: Tensor, adapters: tuple[Tensor, ...]) -> Tensor:
        y = self.reduce(self.operator(x, self.router, self.correction, self.up, self.down))
        for network in self.shared:
            y = self.total(y, network(x, adapters))
        return y
