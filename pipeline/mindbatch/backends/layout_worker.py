"""In the simulation of Ascend: MindSpore's parallel compiler works out layouts of MindFormers' Llama.

As MindFormers runs it: bfloat16, flash attention, a paged cache. The first rank of each pipeline stage builds
the model, without memory for its parameters, and compiles it up to where kernels would be chosen.
"""

from __future__ import annotations

import gc
import json
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mindbatch.backends.simulation.forks import as_rank

_FULL_SHAPE = 6  # place in MindSpore's layout of a parameter
_BLOCK_SIZE, _NUM_BLOCKS = 16, 16
_CACHE = ("key_cache", "value_cache")
_DTYPES = {
    "compute_dtype": "bfloat16",
    "param_init_type": "bfloat16",
    "rotary_dtype": "bfloat16",
    "layernorm_compute_type": "float32",
    "softmax_compute_type": "float32",
}


def infer_layouts(jobs: str) -> Iterator[dict[str, Any]]:
    """For each job and each of its leading ranks: the shapes of its parameters and the strategy file.

    jobs: JSON, a list of `mindformers_layout.LayoutJob`.
    """
    import mindformers  # noqa: F401  once, for all forks

    gc.freeze()  # each compilation collects garbage: what is imported is none
    for job in json.loads(jobs):
        for rank in job["leaders"]:
            yield from as_rank(rank, job["num_ranks"], partial(_infer_layout, job, rank))


def _infer_layout(job: dict[str, Any], rank: int) -> Iterator[dict[str, Any]]:
    import mindspore
    import numpy as np
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
    network = _network(job)
    options = job["model"]
    tokens = np.ones((options["batch_size"], options["seq_length"]), np.int32)
    inputs = network.prepare_inputs_for_predict_layout(tokens)
    # Kernels have no part in layouts, and MindSpore's simulation cannot choose those of several stages.
    layouts = mindspore.Model(network).infer_predict_layout(*inputs, skip_backend_compile=True)
    shapes = {name: layout[_FULL_SHAPE] for name, layout in layouts.items() if _is_weight(name)}
    yield {"shapes": shapes, "strategy": b64encode(path.read_bytes()).decode()}


def _is_weight(name: str) -> bool:
    """Whether it is a parameter of the checkpoint; MindSpore lists caches, too, and a nameless input."""
    return bool(name) and name.rpartition(".")[2] not in _CACHE


def _network(job: dict[str, Any]) -> Any:
    from mindformers import LlamaConfig, LlamaForCausalLM
    from mindformers.modules.transformer import TransformerOpParallelConfig
    from mindspore.nn.utils import no_init_parameters

    parallel = TransformerOpParallelConfig(
        data_parallel=job["data_parallel"],
        model_parallel=job["model_parallel"],
        pipeline_stage=job["pipeline_stage"],
        vocab_emb_dp=job["vocab_emb_dp"],
    )
    with no_init_parameters():
        network = LlamaForCausalLM(
            LlamaConfig(
                use_past=job["use_past"],
                use_flash_attention=True,
                block_size=_BLOCK_SIZE,
                num_blocks=_NUM_BLOCKS,
                is_dynamic=False,
                parallel_config=parallel,
                **_DTYPES,
                **job["model"],
            )
        )
    network.set_train(False)
    return network
