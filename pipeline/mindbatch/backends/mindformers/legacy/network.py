"""Building MindFormers' legacy networks: MindSpore's parallel mode, and a network without its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Model, nn, set_auto_parallel_context

from mindbatch.backends.mindformers.legacy.chatglm import CHATGLM, MAX_POSITIONS
from mindbatch.backends.mindformers.quiet import quietly
from mindbatch.config.environment import prepare_for_mindformers
from mindbatch.parallel.topology import WHOLE, TensorSlice

CACHES = ("key_cache", "value_cache")


@dataclass(frozen=True)
class ParallelSizes:
    """How many ranks share what.

    vocab_emb_dp: the token embedding and the head are whole on each rank.
    """

    data_parallel: int = 1
    model_parallel: int = 1
    pipeline_stage: int = 1
    vocab_emb_dp: bool = False


@dataclass(frozen=True)
class CacheSizes:
    """Of the paged cache that the network makes itself; use_past=False: it makes none."""

    num_blocks: int
    block_size: int
    use_past: bool = True


def enter_parallel_mode(shard: TensorSlice) -> None:
    """Has MindSpore cut the graphs that are compiled from now on, for this rank; several ranks need `init()`.

    One rank alone compiles its graphs as they are.
    """
    if shard == WHOLE:
        set_auto_parallel_context(parallel_mode="stand_alone")
        return
    set_auto_parallel_context(
        parallel_mode="semi_auto_parallel",
        full_batch=True,
        device_num=shard.size,
        global_rank=shard.rank,
    )


def import_networks() -> None:
    """Imports MindFormers' classes: some seconds, once for all processes that are forked then."""
    prepare_for_mindformers()
    import mindformers  # noqa: F401


def legacy_network(
    model_type: str, options: Mapping[str, Any], parallel: ParallelSizes, cache: CacheSizes, dtype: str
) -> nn.Cell:
    """MindFormers' network of a legacy type, without memory for its parameters.

    options: of `models.generation_options`. dtype: of weights, rotations and cache; norms and softmax are
    computed in float32.
    """
    make = chatglm_network if model_type == CHATGLM else llama_network
    return make(options, parallel, cache, dtype)


def llama_network(
    options: Mapping[str, Any], parallel: ParallelSizes, cache: CacheSizes, dtype: str
) -> nn.Cell:
    """MindFormers' LlamaForCausalLM. options: keyword arguments of LlamaConfig."""
    import_networks()
    from mindformers import LlamaConfig, LlamaForCausalLM
    from mindspore.nn.utils import no_init_parameters

    config = LlamaConfig(**_settings(parallel, cache, dtype), softmax_compute_type="float32", **options)
    with quietly(), no_init_parameters():
        network = LlamaForCausalLM(config)
    network.set_train(False)
    return network


def chatglm_network(
    options: Mapping[str, Any], parallel: ParallelSizes, cache: CacheSizes, dtype: str
) -> nn.Cell:
    """MindFormers' ChatGLM2ForConditionalGeneration. options: keyword arguments of ChatGLM2Config.

    Its class makes masks of seq_length squared and rotations for as many positions, so that seq_length is
    small and the table of rotations is made again. It leaves its embedding whole; here it is cut as the head.
    """
    import_networks()
    from mindformers import ChatGLM2Config, ChatGLM2ForConditionalGeneration
    from mindformers.models.glm2.glm2_modules import FreqsMgr
    from mindspore.nn.utils import no_init_parameters

    given = dict(options)
    positions = given.pop(MAX_POSITIONS)
    config = ChatGLM2Config(**_settings(parallel, cache, dtype), **given)
    with quietly(), no_init_parameters():
        network = ChatGLM2ForConditionalGeneration(config)
        network.transformer.freqs_mgr = FreqsMgr(
            dim=config.kv_channels // 2,
            seq_length=positions,
            rotary_dtype=config.rotary_dtype,
            rope_ratio=config.rope_ratio,
        )
    network.transformer.embedding.shard(config.parallel_config)
    network.set_train(False)
    return network


def _settings(parallel: ParallelSizes, cache: CacheSizes, dtype: str) -> dict[str, Any]:
    """What the configurations of all classes are told."""
    from mindformers.modules.transformer import TransformerOpParallelConfig

    return {
        "use_past": cache.use_past,
        "use_flash_attention": True,
        "block_size": cache.block_size,
        "num_blocks": cache.num_blocks,
        "is_dynamic": False,
        "parallel_config": TransformerOpParallelConfig(**vars(parallel)),
        "layernorm_compute_type": "float32",
        **dict.fromkeys(("compute_dtype", "param_init_type", "rotary_dtype"), dtype),
    }


def infer_layout(network: nn.Cell, batch_size: int, seq_length: int) -> dict[str, Any]:
    """MindSpore's layout of each weight; from here on parameters have the shapes of this rank's slices.

    Kernels have no part in layouts, and MindSpore's simulation cannot choose those of several stages.
    """
    tokens = np.ones((batch_size, seq_length), np.int32)
    inputs = network.prepare_inputs_for_predict_layout(tokens)
    found = Model(network).infer_predict_layout(*inputs, skip_backend_compile=True)
    weights = {name for name, _ in network.parameters_and_names() if not is_cache(name)}
    return {name: layout for name, layout in found.items() if name in weights}  # inputs are listed, too


def is_cache(name: str) -> bool:
    """Whether a parameter of the network is no weight but its cache."""
    return name.rpartition(".")[2] in CACHES


@dataclass(frozen=True)
class Parts:
    """What a step uses of a legacy network. attentions: of its layers, which hold the caches."""

    decoder: nn.Cell
    head: nn.Cell
    layers: nn.CellList
    attentions: list[nn.Cell]


def parts_of(network: nn.Cell) -> Parts:
    """The parts of a network of `legacy_network`."""
    from mindformers import ChatGLM2ForConditionalGeneration

    if isinstance(network, ChatGLM2ForConditionalGeneration):
        decoder, layers = network.transformer, network.transformer.encoder.layers
        attentions = [layer.self_attention.infer_attention for layer in layers]
        return Parts(decoder, decoder.output_layer, layers, attentions)
    attentions = [layer.attention.infer_attention for layer in network.model.layers]
    return Parts(network.model, network.lm_head, network.model.layers, attentions)
