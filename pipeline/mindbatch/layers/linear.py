"""Linear layers that know their slice of the weight."""

from __future__ import annotations

from mindspore import Tensor, nn

from mindbatch.kernels.interface import Kernels
from mindbatch.layers.weights import Weights
from mindbatch.parallel.topology import TensorSlice


class ColumnLinear(nn.Cell):
    """x W^T + b for this rank's outputs; [T, inputs] -> [T, local outputs]. No collective."""

    def __init__(self, name: str, weights: Weights, kernels: Kernels) -> None:
        super().__init__(auto_prefix=False)
        self.weight = weights.get(f"{name}.weight")
        self.bias = weights.optional(f"{name}.bias")
        self.product = kernels.linear(weights.outputs[f"{name}.weight"])

    def construct(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.bias)


class RowLinear(nn.Cell):
    """x W^T + b where each rank holds some inputs: the partial sums are reduced, one of them with b."""

    def __init__(self, name: str, weights: Weights, kernels: Kernels, shard: TensorSlice) -> None:
        super().__init__(auto_prefix=False)
        self.weight = weights.get(f"{name}.weight")
        self.bias = weights.optional(f"{name}.bias") if shard.rank == 0 else weights.absent
        self.product = kernels.linear(weights.outputs[f"{name}.weight"])
        self.reduce = kernels.all_reduce(shard)

    def construct(self, x: Tensor) -> Tensor:
        return self.reduce(self.product(x, self.weight, self.bias))


class VocabularyHead(nn.Cell):
    """Hidden states to logits; each rank has a part of the vocabulary and all ranks get the whole."""

    def __init__(
        self, name: str, vocab_size: int, weights: Weights, kernels: Kernels, shard: TensorSlice
    ) -> None:
        super().__init__(auto_prefix=False)
        self.weight = weights.get(name)
        self.no_bias = weights.absent
        self.product = kernels.linear(weights.outputs[name])
        self.gather = kernels.all_gather(shard, vocab_size)

    def construct(self, hidden: Tensor) -> Tensor:
        return self.gather(self.product(hidden, self.weight, self.no_bias))
