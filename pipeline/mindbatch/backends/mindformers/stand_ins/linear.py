"""Replaces `tensor_parallel.layers` by our kernels, with adapters.

MindSpore's MatMul has a CPU kernel, but the last digits of a row's result depend on the number of rows. With
our kernels a row's result is the same in any batch, so that a resumed run equals an uninterrupted one.
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

MAX_TOKENS = 1 << 18
"""Maximum of tokens in a step, padding included: the size of the tensor of their slots."""


class StepSlots(nn.Cell):
    """Stores the slots of a step's tokens for the adapted layers of the same graph.

    MindFormers' modules pass on hidden states only. Each graph writes the slots before it reads them.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        zeros = Tensor(np.zeros(MAX_TOKENS, np.int32))
        self.kept = Parameter(zeros, name="adapters.slots", requires_grad=False)
        self.padding = zeros

    def construct(self, adapters: tuple[Tensor, ...]) -> Tensor:
        [slots] = adapters
        return ops.assign(self.kept, ops.concat((slots, self.padding[slots.shape[0] :])))


class StepAdapters(NamedTuple):
    """Adapter parameters by the names of `adapter_specs`, and the store of a step's slots."""

    parameters: Mapping[str, AdaptedParameter]
    slots: StepSlots

    def of(self, name: str) -> AdaptedLayer | None:
        """Returns the adapter parameters of a layer; None if no adapter changes it."""
        parameters = self.parameters.get(name)
        return None if parameters is None else AdaptedLayer(*parameters, self.slots.kept)


class AdaptedLayer(NamedTuple):
    """The adapter parameters of one layer (`AdaptedParameter`), and the slots of the step's tokens."""

    stored: tuple[Parameter, ...]
    shape: AdaptedShape
    slots: Parameter


def linear_layers(network: Any) -> Iterator[tuple[str, Any, str]]:
    """Yields the linear layers except experts: the name in `adapter_specs`, the owner and its attribute."""
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
    """Calls the cell of an adapted operation on x [T, ...] and a weight, with the slots and adapters."""

    def __init__(self, cell: nn.Cell, adapted: AdaptedLayer) -> None:
        super().__init__(auto_prefix=False)
        self.cell, self.stored, self.slots = cell, adapted.stored, adapted.slots

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        # The dependency on x is needed: MindSpore 2.9 may otherwise read the slots before they are written.
        slots = ops.depend(self.slots, x)[: x.shape[0]]
        return self.cell(x, weight, slots, *self.stored)


class AdaptedProduct(nn.Cell):
    """Computes x W^T + b with adapters, of the ranks' products where `reduce` adds them."""

    def __init__(
        self, outputs: int, kernels: MindSporeKernels, adapted: AdaptedLayer, reduce: nn.Cell
    ) -> None:
        super().__init__(auto_prefix=False)
        self.products = kernels.cell("adapted_products", outputs=outputs, shape=adapted.shape)
        self.sum = kernels.cell("adapted_sum", shape=adapted.shape)
        self.stored, self.slots, self.reduce = adapted.stored, adapted.slots, reduce

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        slots = ops.depend(self.slots, x)[: x.shape[0]]  # as in `WithAdapters`
        y, inner = self.products(x, weight, slots, *self.stored)
        return self.sum(self.reduce(y), self.reduce(inner), bias, slots, *self.stored)


class KernelLinear(nn.Cell):
    """Computes x W^T + b [T, outputs] of x [T, inputs], and then the collective of the ranks, if any.

    bias: the bias, or kernels.absent(). collective: gathers the ranks' products, or adds them where the layer
        has no adapter. adapted: the adapter parameters of the layer. reduce: adds the ranks' products, if it
        has one.
    """

    def __init__(
        self,
        outputs: int,
        weight: Parameter,
        bias: Tensor,
        kernels: MindSporeKernels,
        collective: nn.Cell | None = None,
        adapted: AdaptedLayer | None = None,
        reduce: nn.Cell | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        if adapted is None:
            self.product = kernels.cell("linear", outputs=outputs)
        else:
            self.product = AdaptedProduct(outputs, kernels, adapted, reduce or Identity())
        self.weight = weight
        self.bias = bias
        self.collective = collective or Identity()

    def construct(self, x: Tensor) -> Tensor:
        return self.collective(self.product(x, self.weight, self.bias))


class KernelEmbedding(nn.Cell):
    """Looks up the rows [T, width] of ids [T] in a matrix, of which each rank has `shape`.

    adapted: the adapter parameters of the embedding.
    """

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
    """Computes the product of a router with its own weight."""

    def __init__(self, linear: KernelLinear) -> None:
        super().__init__(auto_prefix=False)
        self.linear = linear

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.linear(x)


def linear_of(module: Any, kernels: MindSporeKernels, adapted: AdaptedLayer | None = None) -> KernelLinear:
    """Makes a layer with the product of a module of MindFormers and its adapters."""
    from mindformers.parallel_core.inference.tensor_parallel.layers import RowParallelLinear

    outputs, shard = module.weight.shape[0], _shard_of(module)
    is_row = isinstance(module, RowParallelLinear)
    # What follows the products of an adapted layer is computed of their sum, on every rank.
    is_first = not is_row or shard.rank == 0 or adapted is not None
    has_bias = getattr(module, "bias", None) is not None and is_first
    bias = constant(module.bias.asnumpy(), kernels.dtype) if has_bias else kernels.absent()
    collective = reduce = None
    if is_row and not module.delay_allreduce and not module.skip_bias_add:
        sum_of_ranks = kernels.cell("all_reduce", shard=shard)
        collective, reduce = (sum_of_ranks, None) if adapted is None else (None, sum_of_ranks)
    elif getattr(module, "gather_output", False):
        collective = kernels.cell("all_gather", shard=shard, total=outputs * shard.size)
    weight = _weight_of(module, kernels)
    return KernelLinear(outputs, weight, bias, kernels, collective, adapted, reduce)


def _weight_of(module: Any, kernels: MindSporeKernels) -> Parameter:
    """Packs the matrix [outputs, inputs] of a module in the layout of the kernels."""
    weight = module.weight.asnumpy()
    array = kernels.packed_zeros(*weight.shape)
    kernels.pack(array, 0, weight)
    return shared_parameter(module.weight.name, array)


def _shard_of(module: Any) -> TensorSlice:
    group = getattr(module, "tp_group", None)
    return WHOLE if group is None else TensorSlice(group.rank, group.size)


def replace_linear(module: nn.Cell, kind: type, kernels: MindSporeKernels) -> None:
    """Replaces the linear layers of a type in a module."""
    for name, child in list(module.name_cells().items()):
        if isinstance(child, kind):
            setattr(module, name, linear_of(child, kernels))


def replace_adapted(network: Any, adapters: StepAdapters, kernels: MindSporeKernels) -> None:
    for name, owner, attribute in linear_layers(network):
        if (adapted := adapters.of(name)) is not None:
            setattr(owner, attribute, linear_of(getattr(owner, attribute), kernels, adapted))


def replace_embedding(
    model: Any, kernels: MindSporeKernels, adapters: StepAdapters | None, *, tied: bool
) -> None:
    """Replaces the embedding of a tied model, or one with adapters.

    tied: the embedding uses the head's matrix, which must have been replaced before.
    """
    embedding = model.embedding.word_embeddings
    adapted = None if adapters is None else adapters.of(EMBEDDING)
    if tied or adapted is not None:
        weight = model.output_layer.weight if tied else _weight_of(embedding, kernels)
        shape, shard = embedding.weight.shape, _shard_of(embedding)
        model.embedding.word_embeddings = KernelEmbedding(weight, shape, shard, kernels, adapted)
