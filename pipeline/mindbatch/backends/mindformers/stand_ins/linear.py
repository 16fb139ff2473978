"""For `tensor_parallel.layers`: products by our kernels.

MindSpore's MatMul has a CPU kernel, but the last digits of what it gives for a row depend on how many rows
there are. With ours a row's result is the same in any batch, so that a resumed run equals an unbroken one.
"""

from typing import Any

from mindspore import Parameter, Tensor, nn, ops

from mindbatch.backends.mindformers.adapters import AdaptedLayer, StepAdapters, linear_places
from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.mindspore_kernels import MindSporeKernels, constant, shared_parameter
from mindbatch.models.adapter_weights import EMBEDDING
from mindbatch.parallel.collectives import Identity
from mindbatch.parallel.topology import WHOLE, TensorSlice


def packed(name: str, weight: FloatArray, kernels: MindSporeKernels) -> Parameter:
    """The matrix [outputs, inputs] in the layout of the kernels."""
    array = kernels.packed_zeros(*weight.shape)
    kernels.pack(array, 0, weight)
    return shared_parameter(name, array)


class KernelLinear(nn.Cell):
    """x [T, inputs] -> x W^T + b [T, outputs], and what ranks do then: add their products, or gather them.

    bias: one of zero, [1], for none. adapted: what adapters add to the product.
    """

    def __init__(
        self,
        outputs: int,
        weight: Parameter,
        bias: Tensor,
        kernels: MindSporeKernels,
        meet: nn.Cell | None = None,
        adapted: AdaptedLayer | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        if adapted is None:
            self.product = kernels.cell("linear", outputs=outputs)
        else:
            self.product = kernels.cell("adapted_linear", outputs=outputs, shape=adapted.shape)
        self.stored = () if adapted is None else adapted.stored
        self.slots = None if adapted is None else adapted.slots
        self.weight = weight
        self.bias = bias
        self.meet = meet or Identity()

    def construct(self, x: Tensor) -> Tensor:
        if self.slots is None:
            return self.meet(self.product(x, self.weight, self.bias))
        slots = slots_of(x, self.slots)
        return self.meet(self.product(x, self.weight, self.bias, slots, *self.stored))


class KernelEmbedding(nn.Cell):
    """ids [T] -> rows [T, width] of a matrix; each rank has `shape` of them. adapted: what adapters add."""

    def __init__(
        self,
        weight: Parameter,
        shape: tuple[int, int],
        shard: TensorSlice,
        kernels: MindSporeKernels,
        adapted: AdaptedLayer | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        outputs, width = shape
        if adapted is None:
            self.rows = kernels.cell("embedding", width=width)
        else:
            self.rows = kernels.cell("adapted_embedding", shape=adapted.shape)
        self.stored = () if adapted is None else adapted.stored
        self.slots = None if adapted is None else adapted.slots
        self.weight = weight
        self.first_id = shard.rank * outputs
        self.reduce = kernels.cell("all_reduce", shard=shard)

    def construct(self, ids: Tensor) -> Tensor:
        if self.first_id > 0:
            ids = ids - self.first_id
        if self.slots is None:
            return self.reduce(self.rows(ids, self.weight))
        return self.reduce(self.rows(ids, self.weight, slots_of(ids, self.slots), *self.stored))


def slots_of(x: Tensor, kept: Parameter) -> Tensor:
    """The slots of the tokens that x [T, ...] is of, read once x is there.

    Read without that, they are what was kept before the graph was compiled, whenever it runs first
    (MindSpore 2.9).
    """
    return ops.depend(kept, x)[: x.shape[0]]


class RouterProduct(nn.Cell):
    """The product of a router, whose weight it holds itself."""

    def __init__(self, linear: KernelLinear) -> None:
        super().__init__(auto_prefix=False)
        self.linear = linear

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.linear(x)


def linear_of(module: Any, kernels: MindSporeKernels, adapted: AdaptedLayer | None = None) -> KernelLinear:
    """Replaces a module of MindFormers by one of the same product, with what adapters add."""
    from mindformers.parallel_core.inference.tensor_parallel.layers import RowParallelLinear

    outputs, shard = module.weight.shape[0], _shard_of(module)
    is_row = isinstance(module, RowParallelLinear)
    has_bias = getattr(module, "bias", None) is not None and not (is_row and shard.rank > 0)
    bias = constant(module.bias.asnumpy(), kernels.dtype) if has_bias else kernels.absent()
    meet = None
    if is_row and not module.delay_allreduce and not module.skip_bias_add:
        meet = kernels.cell("all_reduce", shard=shard)
    elif getattr(module, "gather_output", False):
        meet = kernels.cell("all_gather", shard=shard, total=outputs * shard.size)
    return KernelLinear(outputs, _weight_of(module, kernels), bias, kernels, meet, adapted)


def _weight_of(module: Any, kernels: MindSporeKernels) -> Parameter:
    """The matrix of a module as the kernels take it."""
    return packed(module.weight.name, module.weight.asnumpy(), kernels)


def _shard_of(module: Any) -> TensorSlice:
    group = getattr(module, "tp_group", None)
    return WHOLE if group is None else TensorSlice(group.rank, group.size)


def put_in(module: nn.Cell, kinds: type | tuple[type, ...], kernels: MindSporeKernels) -> None:
    """Replaces the linear layers that a module holds, of some kinds."""
    for name, child in list(module.name_cells().items()):
        if isinstance(child, kinds):
            setattr(module, name, linear_of(child, kernels))


def put_in_adapted(network: Any, adapters: StepAdapters, kernels: MindSporeKernels, *, tied: bool) -> None:
    """Replaces the layers that adapters act on; `share_with_head` has the embedding of a tied model."""
    for name, (owner, attribute) in linear_places(network):
        if (adapted := adapters.of(name)) is not None:
            setattr(owner, attribute, linear_of(getattr(owner, attribute), kernels, adapted))
    adapted = adapters.of(EMBEDDING)
    if adapted is not None and not tied:
        embedding = network.model.embedding.word_embeddings
        _put_in_embedding(network.model, _weight_of(embedding, kernels), kernels, adapted)


def share_with_head(model: Any, kernels: MindSporeKernels, adapters: StepAdapters | None) -> None:
    """Lets the embedding of a tied model read the head's packed matrix: nothing is held twice."""
    adapted = None if adapters is None else adapters.of(EMBEDDING)
    _put_in_embedding(model, model.output_layer.weight, kernels, adapted)


def _put_in_embedding(
    model: Any, weight: Parameter, kernels: MindSporeKernels, adapted: AdaptedLayer | None
) -> None:
    embedding = model.embedding.word_embeddings
    shape, shard = embedding.weight.shape, _shard_of(embedding)
    model.embedding.word_embeddings = KernelEmbedding(weight, shape, shard, kernels, adapted)
