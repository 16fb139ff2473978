"""Compiles several models in one process of the simulation, which imports MindSpore once."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mindbatch.ascend_simulation.compilation import compile_ranks
from mindbatch.engine.settings import EngineSettings
from mindbatch.kernels import memory
from mindbatch.parallel.topology import stage_layers


def compile_job(
    network: str,
    config: Mapping[str, Any],
    size: int,
    ranks: Sequence[int],
    *,
    max_batched_tokens: int,
    stages: int = 1,
    **others: Any,
) -> dict[str, Any]:
    """A job of `compile_ranks`: all layers of a config.json, as many to each stage, cut over `size` ranks.

    others: further keys of the job.
    """
    settings = EngineSettings(
        batch_size=1, seq_length=32, block_size=16, num_blocks=16, max_batched_tokens=max_batched_tokens
    )
    num_layers = config.get("num_hidden_layers", config.get("n_layer", config.get("num_layers", 1)))
    return {
        "network": network,
        "config": config,
        "source": "config.json",
        "model_type": "auto",
        "ignore": [],
        "layers": [[*stage_layers(num_layers, stage, stages)] for stage in range(stages)],
        "dtype": "auto",
        "settings": asdict(settings),
        "model_parallel": size,
        "pipeline_stage": stages,
        "ranks": ranks,
        **others,
    }


def first_and_last(size: int) -> list[int]:
    """Of `size` ranks."""
    return sorted({0, size - 1})


def compile_jobs(jobs: str) -> Iterator[dict[str, Any]]:
    """jobs: by name, those of `compile_ranks`; the last one is compiled in float32, against our own rule."""
    named = json.loads(jobs)
    for name, job in named.items():
        if name == "float32":
            memory.DTYPES["Ascend"] = (memory.FLOAT32,)
        for report in compile_ranks(json.dumps(job)):
            yield {"job": name, **report}
