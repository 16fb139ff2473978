"""Linear layers that know their slice of the weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.layer import Layer, Operation
from mindbatch.layers.weights import Weights
from mindbatch.parallel.topology import TensorSlice

if TYPE_CHECKING:
    from mindspore import Parameter, Tensor


class Product(Layer):
    """x W^T + b."""

    def __init__(self, operator: Operation, weight: Parameter, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias
        self.operator = operator

    def construct(self, x: Tensor, adapters: tuple[Tensor, ...]) -> Tensor:
        return self.operator(x, self.weight, self.bias)


class AdaptedProduct(Product):
    """x W^T + b, and of each token what its adapter adds to it."""

    def __init__(
        self, operator: Operation, weight: Parameter, bias: Tensor, stored: tuple[Parameter, ...]
    ) -> None:
        super().__init__(operator, weight, bias)
        self.stored = stored

    def construct(self, x: Tensor, adapters: tuple[Tensor, ...]) -> Tensor:
        return self.operator(x, self.weight, self.bias, *adapters, *self.stored)


def product(name: str, weights: Weights, kernels: Kernels, bias: Tensor, base: str | None = None) -> Product:
    """The product with a weight; adapted where any adapter has something for it.

    base: the parameter, where it is another's too (a head that is the token embedding).
    """
    weight, outputs = weights.get(base or name), weights.outputs[base or name]
    place = weights.adapted.get(name)
    if place is None:
        return Product(kernels.linear(outputs), weight, bias)
    return AdaptedProduct(kernels.adapted_linear(outputs, place.shape), weight, bias, place.stored)


class ColumnLinear(Layer):
    """x W^T + b for this rank's outputs; [T, inputs] -> [T, local outputs]. No collective."""

    def __init__(self, name: str, weights: Weights, kernels: Kernels) -> None:
        bias = weights.optional(f"{name}.bias")
        self.product = product(f"{name}.weight", weights, kernels, bias)

    def construct(self, x: Tensor, adapters: tuple[Tensor, ...]) -> Tensor:
        return self.product(x, adapters)


class RowLinear(Layer):
    """x W^T + b where each rank holds some inputs: the partial sums are reduced, one of them with b."""

    def __init__(self, name: str, weights: Weights, kernels: Kernels, shard: TensorSlice) -> None:
        bias = weights.optional(f"{name}.bias") if shard.rank == 0 else weights.absent
        self.product = product(f"{name}.weight", weights, kernels, bias)
        self.reduce = kernels.all_reduce(shard)

    def construct(self, x: Tensor, adapters: tuple[Tensor, ...]) -> Tensor:
        return self.reduce(self.product(x, adapters))


class VocabularyHead(Layer):
    """Hidden states to logits; each rank has a part of the vocabulary and all ranks get the whole.

    base: the parameter; adapters have the head by its own name, also where it is the token embedding.
    after: takes the rank's logits and gives them as the model has them; None where they are so.
    """

    def __init__(
        self,
        base: str,
        vocab_size: int,
        weights: Weights,
        kernels: Kernels,
        shard: TensorSlice,
        after: Operation | None = None,
    ) -> None:
        self.product = product("head.weight", weights, kernels, weights.optional("head.bias"), base)
        self.gather = kernels.all_gather(shard, vocab_size)
        self.after = after

    def construct(self, hidden: Tensor, adapters: tuple[Tensor, ...] = ()) -> Tensor:
        logits = self.product(hidden, adapters)
        return self.gather(logits if self.after is None else self.after(logits))
