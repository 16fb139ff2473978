"""Building MindFormers' legacy Llama: MindSpore's parallel mode, and the network without its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Model, nn, set_auto_parallel_context

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


def import_llama() -> None:
    """Imports MindFormers' classes: some seconds, once for all processes that are forked then."""
    prepare_for_mindformers()
    import mindformers  # noqa: F401


def llama_network(
    options: Mapping[str, Any], parallel: ParallelSizes, cache: CacheSizes, dtype: str
) -> nn.Cell:
    """MindFormers' LlamaForCausalLM without memory for its parameters.

    options: keyword arguments of LlamaConfig. dtype: of weights, rotations and cache; norms and softmax are
    computed in float32.
    """
    import_llama()
    from mindformers import LlamaConfig, LlamaForCausalLM
    from mindformers.modules.transformer import TransformerOpParallelConfig
    from mindspore.nn.utils import no_init_parameters

    config = LlamaConfig(
        use_past=cache.use_past,
        use_flash_attention=True,
        block_size=cache.block_size,
        num_blocks=cache.num_blocks,
        is_dynamic=False,
        parallel_config=TransformerOpParallelConfig(**vars(parallel)),
        **dict.fromkeys(("compute_dtype", "param_init_type", "rotary_dtype"), dtype),
        **dict.fromkeys(("layernorm_compute_type", "softmax_compute_type"), "float32"),
        **options,
    )
    with quietly(), no_init_parameters():
        network = LlamaForCausalLM(config)
    network.set_train(False)
    return network


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
