"""For `tensor_parallel.layers`: products by our kernels.

MindSpore's MatMul has a CPU kernel, but the last digits of what it gives for a row depend on how many rows
there are. With ours a row's result is the same in any batch, so that a resumed run equals an unbroken one.
"""

from __future__ import annotations

from typing import Any

from mindspore import Parameter, Tensor, nn

from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.tensors import constant, shared_parameter
from mindbatch.parallel.collectives import Identity
from mindbatch.parallel.topology import WHOLE, TensorSlice


def packed(name: str, weight: FloatArray, kernels: Kernels) -> Parameter:
    """The matrix [outputs, inputs] in the layout of the kernels."""
    array = kernels.packed_zeros(*weight.shape)
    kernels.pack(array, 0, weight)
    return shared_parameter(name, array)


class Linear(nn.Cell):
    """x [T, inputs] -> x W^T + b [T, outputs], and what ranks do then: add their products, or gather them."""

    def __init__(
        self,
        outputs: int,
        weight: Parameter,
        bias: FloatArray | None,
        kernels: Kernels,
        meet: nn.Cell | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.product = kernels.linear(outputs)
        self.weight = weight
        self.bias = kernels.absent() if bias is None else constant(bias, kernels.dtype)
        self.meet = meet or Identity()

    def construct(self, x: Tensor) -> Tensor:
        return self.meet(self.product(x, self.weight, self.bias))


class Embedding(nn.Cell):
    """ids [T] -> rows [T, width] of the matrix that the head has, too; each rank has `shape` of them."""

    def __init__(
        self, weight: Parameter, shape: tuple[int, int], shard: TensorSlice, kernels: Kernels
    ) -> None:
        super().__init__(auto_prefix=False)
        outputs, width = shape
        self.rows = kernels.embedding(width)
        self.weight = weight
        self.first_id = shard.rank * outputs
        self.reduce = kernels.all_reduce(shard)

    def construct(self, ids: Tensor) -> Tensor:
        if self.first_id > 0:
            ids = ids - self.first_id
        return self.reduce(self.rows(ids, self.weight))


class RouterProduct(nn.Cell):
    """The product of a router, whose weight it holds itself."""

    def __init__(self, linear: Linear) -> None:
        super().__init__(auto_prefix=False)
        self.linear = linear

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.linear(x)


def linear_of(module: Any, kernels: Kernels) -> Linear:
    """The same product as a module's of MindFormers, of its loaded weight and bias."""
    from mindformers.parallel_core.inference.tensor_parallel.layers import RowParallelLinear

    weight = module.weight.asnumpy()
    outputs, shard = weight.shape[0], _shard_of(module)
    is_row = isinstance(module, RowParallelLinear)
    has_bias = getattr(module, "bias", None) is not None and not (is_row and shard.rank > 0)
    bias, meet = module.bias.asnumpy() if has_bias else None, None
    if is_row and not module.delay_allreduce and not module.skip_bias_add:
        meet = kernels.all_reduce(shard)
    elif getattr(module, "gather_output", False):
        meet = kernels.all_gather(shard, outputs * shard.size)
    return Linear(outputs, packed(module.weight.name, weight, kernels), bias, kernels, meet)


def _shard_of(module: Any) -> TensorSlice:
    group = getattr(module, "tp_group", None)
    return WHOLE if group is None else TensorSlice(group.rank, group.size)


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
    embedding = model.embedding.word_embeddings
    shape, shard = embedding.weight.shape, _shard_of(embedding)
    model.embedding.word_embeddings = Embedding(model.output_layer.weight, shape, shard, kernels)
