"""Builds MindFormers' inference network of a spec for the CPU or for Ascend, without weights.

The network is a step's decoder and its head, with the inputs of the project's own networks: ids and positions
[T], and the inputs of attention. Modules without a kernel for the device are replaced in the built network;
MindFormers' classes are not changed.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from mindspore import Parameter, Tensor, nn, ops

from mindbatch.architecture.architecture import Architecture
from mindbatch.backends.mindformers.families import FAMILIES, Family, MindFormersSpec
from mindbatch.backends.mindformers.imports import quietly, stub_hyper_parallel
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
from mindbatch.backends.mindformers.stand_ins.linear import StepAdapters, StepSlots
from mindbatch.backends.model import AdapterBank, Model
from mindbatch.config.environment import prepare_for_mindformers
from mindbatch.io.errors import ConfigError
from mindbatch.kernels.interface import PagedCache, allocate
from mindbatch.kernels.mindspore_kernels import MindSporeKernels, Network
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry
from mindbatch.parallel.topology import TensorSlice

ASCEND_LATENT_RANK = 512  # PagedAttention's mla_v_dim, which MindFormers 1.9 sets for all models


class CpuDecoder(nn.Cell):
    """Computes the hidden states [T, hidden] of a step; the attention cells have the caches.

    slots: stores the adapter slots of the tokens; None without adapters.
    """

    def __init__(self, network: nn.Cell, slots: StepSlots | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.store_slots = slots

    def construct(
        self, ids: Tensor, positions: Tensor, step: tuple[Tensor, ...], adapters: tuple[Tensor, ...]
    ) -> Tensor:
        if self.store_slots is not None:
            ids = ops.depend(ids, self.store_slots(adapters))
        slots, rows, block_tables, lengths = step
        return self.network(
            input_ids=ids,
            positions=positions,
            slot_mapping=slots,
            q_seq_lens=rows,
            block_tables=block_tables,
            batch_valid_length=lengths,
            context_lens_tensor=lengths,
        )


class AscendDecoder(nn.Cell):
    """A decoder for PagedAttention: each token is a sequence of one query with its own block table."""

    def __init__(self, network: nn.Cell, cache: PagedCache) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.keys = [layer[0] for layer in cache.layers]
        self.values: list[Parameter] | None = [layer[1] for layer in cache.layers if len(layer) > 1] or None

    def construct(
        self, ids: Tensor, positions: Tensor, step: tuple[Tensor, ...], adapters: tuple[Tensor, ...]
    ) -> Tensor:
        slots, block_tables, lengths, queries, _ = step
        return self.network(
            input_ids=ids,
            positions=positions,
            slot_mapping=slots,
            q_seq_lens=queries,
            block_tables=block_tables,
            batch_valid_length=lengths,
            context_lens_tensor=lengths - 1,
            key_cache=self.keys,
            value_cache=self.values,
        )


class HeadCell(nn.Cell):
    """Computes the logits of hidden states [S, hidden]. slots: see `CpuDecoder`."""

    def __init__(self, head: nn.Cell, slots: StepSlots | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.head = head
        self.store_slots = slots

    def construct(self, hidden: Tensor, adapters: tuple[Tensor, ...] = ()) -> Tensor:
        if self.store_slots is not None:
            hidden = ops.depend(hidden, self.store_slots(adapters))
        return self.head(hidden)


def build_network(spec: MindFormersSpec, kernels: MindSporeKernels) -> nn.Cell:
    """Builds a rank's network of MindFormers: `model` has hidden states, `model.output_layer` logits.

    kernels: the kernels of the device. With several ranks, call `mindspore.communication.init` first.

    Raises:
        ConfigError: MindFormers cannot run such a model on this device.
    """
    if kernels.device_target == "Ascend":
        _refuse_for_ascend(spec.architecture)
    configuration, kind = _classes(FAMILIES[spec.model_type])
    _enter_group(spec.shard, kernels.device_target)
    _clear_rotations()
    with quietly():
        network = kind(configuration(**spec.arguments, **_types(kernels)))
    network.set_train(False)
    network.add_flags_custom_mcore(is_prefill=False)  # look up cos and sin by position, attend to the cache
    network.model.return_hidden_states = True
    network.model.move_lens_to_cpu = False  # only fused operators of quantised models need them there
    return network


def import_network(model_type: str) -> None:
    """Imports MindFormers' network of a family, which takes seconds, before processes are forked."""
    _classes(FAMILIES[model_type])


def _classes(family: Family) -> tuple[Any, Any]:
    prepare_for_mindformers()
    stub_hyper_parallel()
    package = f"mindformers.models.{family.package}"
    configuration = import_module(f"{package}.configuration_{family.stem}")
    modeling = import_module(f"{package}.modeling_{family.stem}_infer")
    return (
        getattr(configuration, f"{family.configuration}Config"),
        getattr(modeling, f"Inference{family.network}ForCausalLM"),
    )


def _types(kernels: MindSporeKernels) -> dict[str, str]:
    """Returns the number types of the network; norms, softmax and routing are computed in float32."""
    kind = kernels.float_type.name
    computed = dict.fromkeys(("compute_dtype", "params_dtype", "rotary_dtype"), kind)
    exact = dict.fromkeys(("layernorm_compute_dtype", "softmax_compute_dtype", "moe_router_dtype"), "float32")
    return computed | exact


def _refuse_for_ascend(arch: Architecture) -> None:
    if arch.latent is not None and arch.latent.rank != ASCEND_LATENT_RANK:
        raise ConfigError(
            f"runtime.device_target=Ascend: kv_lora_rank={arch.latent.rank}: MindFormers 1.9 runs "
            f"{ASCEND_LATENT_RANK} there; allowed: CPU for this model"
        )


def _enter_group(shard: TensorSlice, device_target: str) -> None:
    """Sets up MindFormers' groups of ranks once a process, after `mindspore.communication.init`.

    On a CPU a tensor-parallel group of all ranks must be MindSpore's world group, because MindFormers gathers
    logits and other groups have no gather.
    """
    if shard.size == 1:
        return
    from mindformers.parallel_core.inference import parallel_state
    from mindspore.communication import get_group_size

    if parallel_state.is_initialized():
        return
    size = get_group_size()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=shard.size, pipeline_model_parallel_size=size // shard.size
    )
    if device_target == "CPU" and shard.size == size:
        parallel_state._TENSOR_MODEL_PARALLEL_GROUP = parallel_state._WORLD_GROUP


def _clear_rotations() -> None:
    """Clears MindFormers' cache of rotations, whose keys do not include the scaling of positions."""
    from mindformers.parallel_core.inference.base_models.common.embeddings import rope_utils

    rope_utils._ROPE_DICT.clear()


def _attention_shape(module: Any, arch: Architecture) -> AttentionShape:
    heads, size = module.num_attention_heads_per_partition, arch.head_dim
    if arch.latent is None:
        return AttentionShape(heads, module.num_query_groups_per_partition, size, size**-0.5)
    return AttentionShape(heads, 1, size, module.softmax_scale)


def assemble(
    network: nn.Cell,
    arch: Architecture,
    kernels: MindSporeKernels,
    geometry: CacheGeometry,
    bank: AdapterBank | None = None,
) -> Model:
    """Makes a Model of a network from `build_network`, with its cache and adapters."""
    shapes = [_attention_shape(layer.self_attention, arch) for layer in network.model.decoder.layers]
    cache = allocate(shapes, geometry, kernels)
    adapters = None if bank is None else StepAdapters(bank.parameters, StepSlots())
    slots = None if adapters is None else adapters.slots
    decoder: nn.Cell
    if kernels.device_target == "CPU":
        replace_for_cpu(network, shapes, cache.layers, kernels, adapters, tied=arch.tied)
        decoder = CpuDecoder(network.model, slots)
    else:
        replace_for_ascend(network)
        decoder = AscendDecoder(network.model, cache)
    parts = Network(decoder, HeadCell(network.model.output_layer, slots))
    return Model(
        arch.vocab_size,
        lambda: parts,
        cache,
        kernels.for_single_tokens(),
        shapes[0],
        few_graphs=True,
        adapters=bank,
    )


Caches = Sequence[tuple[Parameter, ...]]


def replace_for_ascend(network: nn.Cell) -> None:
    """Replaces modules that MindSpore does not compile for Ascend in simulation; the others stay unchanged.

    FusedAddTopKDiv has a kernel in MindSpore's plugin of internal kernels only, and StridedSlice has
    attributes that are objects of CANN.
    """
    from mindformers.parallel_core.inference.transformer.moe import router as routers

    for _, module in network.cells_and_names():
        if isinstance(module, routers.TopKRouter) and module.config.moe_router_fusion:
            _replace_routing(module)
    for layer in network.model.decoder.layers:
        _replace_partial_rotary(layer.self_attention)


def replace_for_cpu(
    network: nn.Cell,
    shapes: Sequence[AttentionShape],
    caches: Caches,
    kernels: MindSporeKernels,
    adapters: StepAdapters | None = None,
    *,
    tied: bool,
) -> None:
    """Replaces the modules of a loaded network that have no CPU kernel, and its linear layers.

    shapes, caches: the attention shape and the cache of each layer. tied: the head is the embedding.
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
            _replace_routing(module)
            module.matmul = linear.RouterProduct(linear.linear_of(module, kernels))
        elif isinstance(module, moe_layer.MoELayer):
            module.token_dispatcher.token_dispatch = TokenDispatch(module.token_dispatcher.num_experts)
            module.token_dispatcher.token_combine = TokenCombine()
        elif isinstance(module, grouped_layers.GroupedLinearBase):
            module.quant_method.matmul = GroupedMatmul()
    if adapters is not None:
        linear.replace_adapted(network, adapters, kernels)
    for _, module in list(network.cells_and_names()):
        linear.replace_linear(module, layers.LinearBase, kernels)
    linear.replace_embedding(network.model, kernels, adapters, tied=tied)
    for layer, shape, cache in zip(network.model.decoder.layers, shapes, caches, strict=True):
        _replace_partial_rotary(layer.self_attention)
        _replace_attention(layer.self_attention, shape, cache, kernels)


def _replace_routing(router: Any) -> None:
    object.__setattr__(router, "routing", TopKRouting(router))


def _replace_partial_rotary(attention: Any) -> None:
    """Replaces the RotaryEmbedding of an attention module that rotates a part of each head."""
    if attention.rotary_emb.rotary_percent < 1:
        attention.rotary_emb = PartialRotary(attention.rotary_emb)


def _replace_attention(
    module: Any, shape: AttentionShape, cache: tuple[Parameter, ...], kernels: MindSporeKernels
) -> None:
    from mindformers.parallel_core.inference.transformer.multi_latent_attention import MLASelfAttention

    keys, values = cache
    rank = 0
    if isinstance(module, MLASelfAttention):
        rank = module.config.kv_lora_rank
        object.__setattr__(module, "get_query_key_value_tensors", LatentTensors(module))
    module.core_attention = KernelAttention(shape, (keys, values), kernels, rank)
