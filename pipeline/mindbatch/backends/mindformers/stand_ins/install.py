"""Puts the stand-ins into a network that was built; MindFormers' own modules stay as they are."""

from collections.abc import Sequence
from typing import Any

from mindspore import Parameter, nn

from mindbatch.backends.mindformers.stand_ins import linear
from mindbatch.backends.mindformers.stand_ins.attention import (
    INTERLEAVED,
    ApplyRotary,
    KernelAttention,
    KernelRmsNorm,
    LatentTensors,
    PartialRotary,
)
from mindbatch.backends.mindformers.stand_ins.experts import (
    GroupedMatmul,
    TokenCombine,
    TokenDispatch,
    TopKRouting,
)
from mindbatch.backends.mindformers.stand_ins.linear import StepAdapters
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
            _put_in_routing(module)
    for layer in network.model.decoder.layers:
        _put_in_partial_rotary(layer.self_attention)


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
            module.norm = KernelRmsNorm(module.eps, kernels)
        elif isinstance(module, rotary_pos_embedding.RotaryEmbedding):
            is_interleaved = module.rotary_embedding_op.cos_format == INTERLEAVED
            module.rotary_embedding_op = ApplyRotary(module.dim, is_interleaved)
        elif isinstance(module, routers.TopKRouter):
            _put_in_routing(module)
            module.matmul = linear.RouterProduct(linear.linear_of(module, kernels))
        elif isinstance(module, moe_layer.MoELayer):
            module.token_dispatcher.token_dispatch = TokenDispatch(module.token_dispatcher.num_experts)
            module.token_dispatcher.token_combine = TokenCombine()
        elif isinstance(module, grouped_layers.GroupedLinearBase):
            module.quant_method.matmul = GroupedMatmul()
    if adapters is not None:
        linear.put_in_adapted(network, adapters, kernels)
    for _, module in list(network.cells_and_names()):
        linear.put_in(module, layers.LinearBase, kernels)
    linear.put_in_embedding(network.model, kernels, adapters, tied=tied)
    for layer, shape, cache in zip(network.model.decoder.layers, shapes, caches, strict=True):
        _put_in_partial_rotary(layer.self_attention)
        _put_in_attention(layer.self_attention, shape, cache, kernels)


def _put_in_routing(router: Any) -> None:
    object.__setattr__(router, "routing", TopKRouting(router))


def _put_in_partial_rotary(attention: Any) -> None:
    """Replaces the RotaryEmbedding of an Attention, if it rotates a part of each head."""
    if attention.rotary_emb.rotary_percent < 1:
        attention.rotary_emb = PartialRotary(attention.rotary_emb)


def _put_in_attention(
    module: Any, shape: AttentionShape, cache: tuple[Parameter, ...], kernels: MindSporeKernels
) -> None:
    from mindformers.parallel_core.inference.transformer.multi_latent_attention import MLASelfAttention

    keys, values = cache
    rank = 0
    if isinstance(module, MLASelfAttention):
        rank = module.config.kv_lora_rank
        object.__setattr__(module, "get_query_key_value_tensors", LatentTensors(module))
    module.core_attention = KernelAttention(shape, (keys, values), kernels, rank)
