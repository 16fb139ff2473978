"""For `tensor_parallel.layers`: products by our kernels, with adapters beside them.

MindSpore's MatMul has a CPU kernel, but the last digits of what it gives for a row depend on how many rows
there are. With ours a row's result is the same in any batch, so that a resumed run equals an unbroken one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindbatch.backends.adapter_weights import EMBEDDING
from mindbatch.kernels.adapters import AdaptedParameter, AdaptedShape
from mindbatch.kernels.mindspore_kernels import MindSporeKernels, constant, shared_parameter
from mindbatch.parallel.context import Identity
from mindbatch.parallel.topology import WHOLE, TensorSlice

MOST_TOKENS = 1 << 18
"""Most tokens of a step, padding included: the size of the tensor that keeps their slots."""


class StepSlots(nn.Cell):
    """Keeps the slots of a step's tokens where the adapted layers of the same graph read them.

    MindFormers' modules hand on hidden states and nothing else. Each graph writes before it reads, so
    nothing is left of the one before.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        zeros = Tensor(np.zeros(MOST_TOKENS, np.int32))
        self.kept = Parameter(zeros, name="adapters.slots", requires_grad=False)
        self.padding = zeros

    def construct(self, adapters: tuple[Tensor, ...]) -> Tensor:
        [slots] = adapters
        return ops.assign(self.kept, ops.concat((slots, self.padding[slots.shape[0] :])))


class StepAdapters(NamedTuple):
    """Adapter parameters by the names of `adapter_specs`, and where a step's slots are kept."""

    parameters: Mapping[str, AdaptedParameter]
    slots: StepSlots

    def of(self, name: str) -> AdaptedLayer | None:
        """The adapter parameters of a layer; None where no adapter adds anything to it."""
        parameters = self.parameters.get(name)
        return None if parameters is None else AdaptedLayer(*parameters, self.slots.kept)


class AdaptedLayer(NamedTuple):
    """Adapter parameters of one layer (`AdaptedParameter`), and the slots of the step's tokens."""

    stored: tuple[Parameter, ...]
    shape: AdaptedShape
    slots: Parameter


def linear_places(network: Any) -> Iterator[tuple[str, Any, str]]:
    """Yields each linear layer by its name of `adapter_specs`, then its owner and the attribute there.

    Experts are left out.
    """
    yield "head.weight", network.model, "output_layer"
    for index, layer in enumerate(network.model.decoder.layers):
        for name, owner, attribute in (
            ("attention.qkv", layer.self_attention, "linear_qkv"),
            ("attention.output", layer.self_attention, "linear_proj"),
            ("mlp.up", layer.mlp, "linear_fc1"),
            ("mlp.down", layer.mlp, "linear_fc2"),
        ):
            if hasattr(owner, attribute):
                yield f"layers.{index}.{name}.weight", owner, attribute


class WithAdapters(nn.Cell):
    """A cell of an adapted operation, which takes x [T, ...] and weights here, and does what adapters do."""

    def __init__(self, cell: nn.Cell, adapted: AdaptedLayer) -> None:
        super().__init__(auto_prefix=False)
        self.cell, self.stored, self.slots = cell, adapted.stored, adapted.slots

    def construct(self, x: Tensor, *weights: Tensor) -> Tensor:
        # Read before x is there, slots are what was kept before the graph was compiled, whenever it runs
        # first (MindSpore 2.9).
        slots = ops.depend(self.slots, x)[: x.shape[0]]
        return self.cell(x, *weights, slots, *self.stored)


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
            self.product = WithAdapters(
                kernels.cell("adapted_linear", outputs=outputs, shape=adapted.shape), adapted
            )
        self.weight = weight
        self.bias = bias
        self.meet = meet or Identity()

    def construct(self, x: Tensor) -> Tensor:
        return self.meet(self.product(x, self.weight, self.bias))


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
            self.rows = WithAdapters(kernels.cell("adapted_embedding", shape=adapted.shape), adapted)
        self.weight = weight
        self.first_id = shard.rank * outputs
        self.reduce = kernels.cell("all_reduce", shard=shard)

    def construct(self, ids: Tensor) -> Tensor:
        if self.first_id > 0:
            ids = ids - self.first_id
        return self.reduce(self.rows(ids, self.weight))


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
    """The matrix [outputs, inputs] of a module in the layout of the kernels."""
    weight = module.weight.asnumpy()
    array = kernels.packed_zeros(*weight.shape)
    kernels.pack(array, 0, weight)
    return shared_parameter(module.weight.name, array)


def _shard_of(module: Any) -> TensorSlice:
    group = getattr(module, "tp_group", None)
    return WHOLE if group is None else TensorSlice(group.rank, group.size)


def put_in(module: nn.Cell, kind: type, kernels: MindSporeKernels) -> None:
    """Replaces the linear layers that a module holds, of a kind."""
    for name, child in list(module.name_cells().items()):
        if isinstance(child, kind):
            setattr(module, name, linear_of(child, kernels))


def put_in_adapted(network: Any, adapters: StepAdapters, kernels: MindSporeKernels) -> None:
    for name, owner, attribute in linear_places(network):
        if (adapted := adapters.of(name)) is not None:
            setattr(owner, attribute, linear_of(getattr(owner, attribute), kernels, adapted))


def put_in_embedding(
    model: Any, kernels: MindSporeKernels, adapters: StepAdapters | None, *, tied: bool
) -> None:
    """Replaces the embedding of a tied model, which then reads the head's matrix, and one with adapters.

    tied: the head has been replaced before: nothing is held twice.
    """
    embedding = model.embedding.word_embeddings
    adapted = None if adapters is None else adapters.of(EMBEDDING)
    if tied or adapted is not None:
        weight = model.output_layer.weight if tied else _weight_of(embedding, kernels)
        shape, shard = embedding.weight.shape, _shard_of(embedding)
        model.embedding.word_embeddings = KernelEmbedding(weight, shape, shard, kernels, adapted)
