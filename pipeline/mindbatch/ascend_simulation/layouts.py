"""Infers layouts of MindFormers' Llama by MindSpore's parallel compiler in the simulation of Ascend.

The model is as MindFormers runs it: bfloat16, flash attention, a paged cache. The first rank of each pipeline
stage builds it without memory for its parameters, and compiles it up to the selection of kernels.
"""

from __future__ import annotations

import gc
import json
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mindbatch.ascend_simulation.process import as_rank
from mindbatch.backends.mindformers.imports import quietly, stub_hyper_parallel
from mindbatch.config.environment import prepare_for_mindformers

if TYPE_CHECKING:
    from mindspore import nn

_FULL_SHAPE = 6  # index in MindSpore's layout of a parameter
_BLOCK_SIZE, _NUM_BLOCKS = 16, 16
_DTYPE = "bfloat16"
_PARALLEL = ("data_parallel", "model_parallel", "pipeline_stage", "vocab_emb_dp")
_CACHES = ("key_cache", "value_cache")


def infer_layouts(jobs: str) -> Iterator[dict[str, Any]]:
    """Yields the shapes of the parameters and the strategy file of the first rank of each stage, by job.

    jobs: JSON, a list of `LayoutJob` of tasks/layout/mindformers.py.
    """
    prepare_for_mindformers()
    stub_hyper_parallel()
    import mindformers  # noqa: F401  before the forks

    gc.freeze()  # each compilation collects garbage; modules are excluded from that
    for job in json.loads(jobs):
        for rank in job["leaders"]:
            yield from as_rank(rank, job["num_ranks"], partial(_infer_layout, job, rank))


def _infer_layout(job: dict[str, Any], rank: int) -> Iterator[dict[str, Any]]:
    import mindspore
    from mindspore.communication import init

    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device("Ascend")
    init()
    path = Path(f"strategy/ckpt_strategy_rank_{rank}.ckpt").absolute()
    mindspore.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel",
        full_batch=True,
        device_num=job["num_ranks"],
        global_rank=rank,
        pipeline_stages=job["pipeline_stage"],
        strategy_ckpt_config={"save_file": str(path)},
    )
    network = _llama(job)
    options = job["model"]
    layouts = _layouts(network, options["batch_size"], options["seq_length"])
    shapes = {name: layout[_FULL_SHAPE] for name, layout in layouts.items()}
    yield {"shapes": shapes, "strategy": b64encode(path.read_bytes()).decode()}


def _llama(job: dict[str, Any]) -> nn.Cell:
    """Builds MindFormers' LlamaForCausalLM without memory for its parameters."""
    from mindformers import LlamaConfig, LlamaForCausalLM
    from mindformers.modules.transformer import TransformerOpParallelConfig
    from mindspore.nn.utils import no_init_parameters

    config = LlamaConfig(
        use_past=job["use_past"],
        use_flash_attention=True,
        block_size=_BLOCK_SIZE,
        num_blocks=_NUM_BLOCKS,
        is_dynamic=False,
        parallel_config=TransformerOpParallelConfig(**{key: job[key] for key in _PARALLEL}),
        **dict.fromkeys(("layernorm_compute_type", "softmax_compute_type"), "float32"),
        **dict.fromkeys(("compute_dtype", "param_init_type", "rotary_dtype"), _DTYPE),
        **job["model"],
    )
    with quietly(), no_init_parameters():
        network = LlamaForCausalLM(config)
    network.set_train(False)
    return network


def _layouts(network: nn.Cell, batch_size: int, seq_length: int) -> dict[str, Any]:
    """Returns MindSpore's layouts of the weights.

    Kernels are not selected: layouts do not depend on them, and the simulation cannot select those of several
    stages.
    """
    from mindspore import Model

    tokens = np.ones((batch_size, seq_length), np.int32)
    inputs = network.prepare_inputs_for_predict_layout(tokens)
    layouts = Model(network).infer_predict_layout(*inputs, skip_backend_compile=True)
    names = (name for name, _ in network.parameters_and_names())
    weights = {name for name in names if name.rpartition(".")[2] not in _CACHES}
    return {name: layout for name, layout in layouts.items() if name in weights}  # inputs have layouts, too
