"""For `tensor_parallel.layers`: products by our kernels.

MindSpore's MatMul has a CPU kernel, but the last digits of what it gives for a row depend on how many rows
there are. With ours a row's result is the same in any batch, so that a resumed run equals an unbroken one.
"""

from __future__ import annotations

from typing import Any

from mindspore import Parameter, Tensor, nn

from mindbatch.kernels.interface import (
    FloatArray,
    Kernels,
    aligned_zeros,
    constant,
    shared_parameter,
)


def packed(name: str, weight: FloatArray, kernels: Kernels) -> Parameter:
    """The matrix [outputs, inputs] in the layout of the kernels."""
    array = aligned_zeros(kernels.packed_shape(*weight.shape), kernels.dtype)
    kernels.pack(array, 0, weight)
    return shared_parameter(name, array)


class Linear(nn.Cell):
    """x [T, inputs] -> x W^T + b [T, outputs]."""

    def __init__(self, outputs: int, weight: Parameter, bias: FloatArray | None, kernels: Kernels) -> None:
        super().__init__(auto_prefix=False)
        self.product = kernels.linear(outputs)
        self.weight = weight
        self.bias = kernels.absent() if bias is None else constant(bias, kernels.dtype)

    def construct(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.bias)


class Embedding(nn.Cell):
    """ids [T] -> rows [T, width] of the matrix that the head has, too."""

    def __init__(self, weight: Parameter, kernels: Kernels) -> None:
        super().__init__(auto_prefix=False)
        self.rows = kernels.embedding()
        self.weight = weight

    def construct(self, ids: Tensor) -> Tensor:
        return self.rows(ids, self.weight)


class RouterProduct(nn.Cell):
    """The product of a router, whose weight it holds itself."""

    def __init__(self, linear: Linear) -> None:
        super().__init__(auto_prefix=False)
        self.linear = linear

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.linear(x)


def linear_of(module: Any, kernels: Kernels) -> Linear:
    """The same product as a module's of MindFormers, of its loaded weight and bias."""
    weight = module.weight.asnumpy()
    has_bias = getattr(module, "bias", None) is not None
    bias = module.bias.asnumpy() if has_bias else None
    return Linear(weight.shape[0], packed(module.weight.name, weight, kernels), bias, kernels)


def put_in_router(module: Any, kernels: Kernels) -> None:
    """Replaces the product of a TopKRouter."""
    module.matmul = RouterProduct(linear_of(module, kernels))


def put_in(module: nn.Cell, kinds: type | tuple[type, ...], kernels: Kernels) -> None:
    """Replaces the linear layers that a module holds, of some kinds."""
    for name, child in list(module.name_cells().items()):
        if isinstance(child, kinds):
            setattr(module, name, linear_of(child, kernels))


def share_with_head(model: Any, kernels: Kernels) -> None:
    """Lets the embedding of a tied model read the head's packed matrix: nothing is held twice."""
    model.embedding.word_embeddings = Embedding(model.output_layer.weight, kernels)
