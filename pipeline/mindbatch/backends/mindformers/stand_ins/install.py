"""Puts the stand-ins into a network that was built; MindFormers' own modules stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspore import Parameter, nn

from mindbatch.backends.mindformers.adapters import StepAdapters
from mindbatch.backends.mindformers.stand_ins import (
    attention,
    grouped_matmul,
    latent_attention,
    linear,
    norm,
    rotary,
    router,
    token_dispatcher,
)
from mindbatch.kernels.mindspore_kernels import MindSporeKernels
from mindbatch.kernels.shapes import AttentionShape

Caches = Sequence[tuple[Parameter, ...]]


def put_in_for_ascend(network: nn.Cell) -> None:
    """Replaces what MindSpore does not compile for Ascend in simulation; all else runs there unchanged.

    FusedAddTopKDiv has a kernel in MindSpore's plugin of internal kernels alone, and StridedSlice attributes
    that are objects of CANN.
    """
    from mindformers.parallel_core.inference.transformer.moe import router as routers

    for _, module in network.cells_and_names():
        if isinstance(module, routers.TopKRouter) and module.config.moe_router_fusion:
            router.put_in(module)
    for layer in network.model.decoder.layers:
        rotary.put_in_partial(layer.self_attention)


def put_in_for_cpu(
    network: nn.Cell,
    shapes: Sequence[AttentionShape],
    caches: Caches,
    kernels: MindSporeKernels,
    adapters: StepAdapters | None = None,
    *,
    tied: bool,
) -> None:
    """Replaces what has no CPU kernel in each module of a loaded network, and its linear layers.

    shapes, caches: of its layers. tied: the head is the embedding.
    """
    from mindformers.parallel_core.inference.base_models.common.embeddings import rotary_pos_embedding
    from mindformers.parallel_core.inference.tensor_parallel import grouped_layers, layers
    from mindformers.parallel_core.inference.transformer import norm as norms
    from mindformers.parallel_core.inference.transformer.moe import moe_layer
    from mindformers.parallel_core.inference.transformer.moe import router as routers

    for _, module in list(network.cells_and_names()):
        if isinstance(module, norms.RMSNorm):
            norm.put_in(module, kernels)
        elif isinstance(module, rotary_pos_embedding.RotaryEmbedding):
            rotary.put_in(module)
        elif isinstance(module, routers.TopKRouter):
            router.put_in(module)
            linear.put_in_router(module, kernels)
        elif isinstance(module, moe_layer.MoELayer):
            token_dispatcher.put_in(module.token_dispatcher)
        elif isinstance(module, grouped_layers.GroupedLinearBase):
            grouped_matmul.put_in(module)
    if adapters is not None:
        linear.put_in_adapted(network, adapters, kernels, tied=tied)
    for _, module in list(network.cells_and_names()):
        linear.put_in(module, layers.LinearBase, kernels)
    if tied:
        linear.share_with_head(network.model, kernels, adapters)
    for layer, shape, cache in zip(network.model.decoder.layers, shapes, caches, strict=True):
        rotary.put_in_partial(layer.self_attention)
        _put_in_attention(layer.self_attention, shape, cache, kernels)


def _put_in_attention(
    module: Any, shape: AttentionShape, cache: tuple[Parameter, ...], kernels: MindSporeKernels
) -> None:
    from mindformers.parallel_core.inference.transformer.multi_latent_attention import MLASelfAttention

    keys, values = cache
    if isinstance(module, MLASelfAttention):
        rank = module.config.kv_lora_rank
        latent_attention.put_in(
            module, latent_attention.LatentAttention(shape, rank, (keys, values), kernels)
        )
    else:
        attention.put_in(module, attention.KernelAttention(shape, (keys, values), kernels))
