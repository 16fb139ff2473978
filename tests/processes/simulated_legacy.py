"""What a simulating process does with MindFormers' legacy models: loads ranks and runs a step of each."""

import gc
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mindbatch.backends.mindformers.legacy.folder_model import LegacyModel, open_legacy
from mindbatch.backends.simulation.forks import as_rank
from mindbatch.engine.sample_steps import DECODE, sample_steps
from mindbatch.engine.settings import EngineSettings
from mindbatch.errors import CheckpointError
from mindbatch.kernels.shapes import CacheGeometry
from mindbatch.models.config_reader import NONE_IGNORED
from mindbatch.parallel.topology import TensorSlice, Topology

SETTINGS = EngineSettings(batch_size=2, seq_length=32, block_size=16, num_blocks=8, max_batched_tokens=8)


def run_ranks(jobs: str) -> Iterator[dict[str, Any]]:
    """For each job, of {"folder", "rank", "size"}: the shapes of a decoding step, or its refusal."""
    import mindformers  # noqa: F401  once, for all forks

    import mindbatch.engine.model_runner  # noqa: F401

    gc.freeze()
    for job in json.loads(jobs):
        yield from as_rank(job["rank"], job["size"], partial(_run_rank, job))


def _run_rank(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from mindbatch.parallel.context import initialise, join_group

    shard = TensorSlice(job["rank"], job["size"])
    initialise("Ascend")
    join_group(Topology(1, shard.size), shard.rank)
    model = open_legacy(Path(job["folder"]), "auto", NONE_IGNORED, shard)
    changed = {**model.options, **job.get("options", {})}
    try:
        yield _stepped(replace(model, options=changed))
    except CheckpointError as error:
        yield {"faults": list(error.faults)}


def _stepped(model: LegacyModel) -> dict[str, Any]:
    from mindbatch.engine.model_runner import ModelRunner
    from mindbatch.kernels.choice import choose_kernels

    loaded: list[tuple[int, int]] = []
    kernels = choose_kernels("auto", "Ascend")
    geometry = CacheGeometry(SETTINGS.num_blocks, SETTINGS.block_size)
    runnable = model.load(kernels, geometry, lambda done, total: loaded.append((done, total)))
    runner = ModelRunner(runnable, SETTINGS)
    sample = next(each for each in sample_steps(SETTINGS) if each.kind == DECODE and each.tokens == 2)
    output = runner.run(sample.step)
    runner.cache.copy_blocks([(0, 1)])
    return {
        "loaded": loaded,
        "hidden": list(output.hidden([0, 1]).shape),
        "logits": list(output.logits([0, 1]).shape),
        "cache": list(runner.cache.keys[0].shape),
        "cache_bytes": runner.cache.nbytes,
    }
