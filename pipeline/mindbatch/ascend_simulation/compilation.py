"""Compiles every graph that ranks of a model need, without weights: what runs in the simulation of Ascend.

MindSpore "runs" each graph there after it has compiled it: outputs have their shapes and no meaning.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mindbatch.ascend_simulation.sample_steps import sample_steps
from mindbatch.ascend_simulation.saved_graphs import launched, refusal_of
from mindbatch.ascend_simulation.weightless import import_networks, weightless
from mindbatch.ascend_simulation.worker import as_rank
from mindbatch.backends.failure import BackendError
from mindbatch.engine.batch import buckets_up_to
from mindbatch.engine.settings import EngineSettings
from mindbatch.models.architecture import BlockPositions2D
from mindbatch.parallel.topology import Topology

if TYPE_CHECKING:  # in the child alone
    from mindbatch.engine.model_runner import ModelRunner

HEAD, COPY = "head", "copies of blocks"
_OUTPUT = Path()  # the current folder, which the simulation gives


def compile_ranks(job: str) -> Iterator[dict[str, Any]]:
    """For each rank of the job and each of its graphs: {"rank", "kind", "tokens"} before it is compiled, and
    after it the same with "seconds", and "kernels", how often each is launched (none: it is a graph that was
    compiled before), or "operator", "rule" and "layer" of what was refused.

    A rank that ends otherwise than it should: {"rank", "error"}.

    A rank of MindFormers' models begins with {"rank", "layer_bytes", "other_bytes"} of its weights.

    job: JSON: network (as of model.provider), config (of config.json), source, model_type, ignore, layers (of
        each stage of a native model), lora (the section, of adapters beside a native model; may be missing),
        dtype, settings (of an engine), model_parallel, pipeline_stage, ranks.
        Replicas are worlds of their own, as when they run.
    """
    todo = json.loads(job)
    import_networks(todo)
    gc.freeze()  # each compilation collects garbage: what is imported is none
    topology = Topology(1, todo["model_parallel"], todo["pipeline_stage"])
    for rank in todo["ranks"]:
        local = rank % topology.replica_size
        try:
            for graph in as_rank(local, topology.replica_size, partial(_compile_rank, todo, topology, local)):
                yield {"rank": rank, **graph}
        except BackendError as error:
            yield {"rank": rank, "error": str(error)}


def _compile_rank(todo: Mapping[str, Any], topology: Topology, rank: int) -> Iterator[dict[str, Any]]:
    from mindbatch.engine.model_runner import ModelRunner
    from mindbatch.kernels.choice import choose_kernels
    from mindbatch.kernels.shapes import CacheGeometry
    from mindbatch.parallel.context import initialise, join_group

    initialise("Ascend")
    join_group(topology, rank)
    settings = _settings(todo["settings"])
    kernels = choose_kernels("auto", "Ascend", dtype=todo["dtype"])
    part = topology.part_of(rank)
    model = weightless(todo, kernels, CacheGeometry(settings.num_blocks, settings.block_size), part)
    if model.weight_bytes:
        yield {**model.weight_bytes}
    runner, few = ModelRunner(model.model, settings), model.model.few_graphs
    yield from _compile_steps(runner, settings, few=few)
    if part.is_last:
        yield from _compile_heads(runner, settings, model.hidden_size, few=few)
    yield from _compiled(COPY, 1, partial(runner.cache.copy_blocks, [(0, 0)]))


def _settings(fields: Mapping[str, Any]) -> EngineSettings:
    two = fields.get("two_positions")
    return EngineSettings(**{**fields, "two_positions": None if two is None else BlockPositions2D(**two)})


def _compile_steps(runner: ModelRunner, settings: EngineSettings, *, few: bool) -> Iterator[dict[str, Any]]:
    for sample in sample_steps(settings, few=few):
        yield from _compiled(sample.kind, sample.tokens, partial(runner.run, sample.step))


def _compile_heads(
    runner: ModelRunner, settings: EngineSettings, hidden_size: int, *, few: bool
) -> Iterator[dict[str, Any]]:
    for rows in buckets_up_to(settings.batch_size, few=few):
        hidden = np.zeros((rows, hidden_size), np.float32)
        adapters = np.zeros(rows, np.int32) if runner.is_adapted else None
        yield from _compiled(HEAD, rows, partial(runner.project, hidden, adapters))


def _compiled(kind: str, tokens: int, run: Callable[[], object]) -> Iterator[dict[str, Any]]:
    graph = {"kind": kind, "tokens": tokens}
    yield graph
    started = time.perf_counter()
    try:
        run()
        outcome: dict[str, Any] = {"kernels": launched(_OUTPUT)}
    except Exception as error:  # of MindSpore, which raises all kinds for an operator that it refuses
        refused = refusal_of(error, _OUTPUT)
        outcome = vars(refused)
    yield {**graph, "seconds": time.perf_counter() - started, **outcome}
