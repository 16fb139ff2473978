"""In the simulation of Ascend: MindSpore's parallel compiler works out layouts of MindFormers' Llama.

As MindFormers runs it: bfloat16, flash attention, a paged cache. The first rank of each pipeline stage builds
the model, without memory for its parameters, and compiles it up to where kernels would be chosen.
"""

from __future__ import annotations

import gc
import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from mindbatch.backends.simulation.forks import as_rank

_FULL_SHAPE = 6  # place in MindSpore's layout of a parameter
_BLOCK_SIZE, _NUM_BLOCKS = 16, 16
_DTYPE = "bfloat16"


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
    from mindspore.communication import init

    from mindbatch.backends.mindformers.legacy import network as legacy

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
    sizes = legacy.ParallelSizes(**{field.name: job[field.name] for field in fields(legacy.ParallelSizes)})
    cache = legacy.CacheSizes(_NUM_BLOCKS, _BLOCK_SIZE, job["use_past"])
    options = job["model"]
    network = legacy.llama_network(options, sizes, cache, _DTYPE)
    layouts = legacy.infer_layout(network, options["batch_size"], options["seq_length"])
    shapes = {name: layout[_FULL_SHAPE] for name, layout in layouts.items()}
    yield {"shapes": shapes, "strategy": b64encode(path.read_bytes()).decode()}
