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

from mindbatch.backends.failure import BackendError
from mindbatch.backends.simulation.forks import as_rank
from mindbatch.backends.simulation.launches import launched
from mindbatch.backends.simulation.refusal import refusal_of
from mindbatch.engine.batch import buckets_up_to
from mindbatch.engine.sample_steps import sample_steps
from mindbatch.engine.settings import EngineSettings
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import IgnoredKeys
from mindbatch.models.native_model import load_native
from mindbatch.models.no_weights import NoWeights, with_layers
from mindbatch.models.registry import describe
from mindbatch.parallel.topology import TensorSlice, Topology

if TYPE_CHECKING:  # in the child alone
    from mindbatch.engine.model_runner import ModelRunner

HEAD, COPY = "head", "copies of blocks"
_OUTPUT = Path()  # the current folder, which the simulation gives


def compile_ranks(job: str) -> Iterator[dict[str, Any]]:
    """For each rank of the job and each of its graphs: {"rank", "kind", "tokens"} before it is compiled, and
    after it the same with "seconds", and "kernels", how often each is launched (none: it is a graph that was
    compiled before), or "operator", "rule" and "layer" of what was refused.

    A rank that ends otherwise than it should: {"rank", "error"}.

    job: JSON: config (of config.json), source, model_type, ignore, layers, dtype, settings (of the engine),
        data_parallel, model_parallel, ranks.
    """
    import mindbatch.engine.model_runner  # noqa: F401  MindSpore, once for all forks

    todo = json.loads(job)
    gc.freeze()  # each compilation collects garbage: what is imported is none
    size = todo["data_parallel"] * todo["model_parallel"]
    for rank in todo["ranks"]:
        try:
            for graph in as_rank(rank, size, partial(_compile_rank, todo, rank)):
                yield {"rank": rank, **graph}
        except BackendError as error:
            yield {"rank": rank, "error": str(error)}


def _compile_rank(todo: Mapping[str, Any], rank: int) -> Iterator[dict[str, Any]]:
    from mindbatch.parallel.context import initialise, join_group

    topology = Topology(todo["data_parallel"], todo["model_parallel"])
    initialise("Ascend")
    join_group(topology, rank)
    settings = EngineSettings(**todo["settings"])
    whole = describe(todo["config"], todo["model_type"], todo["source"], ignore=IgnoredKeys(todo["ignore"]))
    arch = with_layers(whole, todo["layers"])
    runner = _runner(arch, todo["dtype"], settings, topology.slice_of(rank))
    yield from _compile_all(runner, settings, arch.hidden_size)


def _runner(arch: Architecture, dtype: str, settings: EngineSettings, shard: TensorSlice) -> ModelRunner:
    from mindbatch.engine.model_runner import ModelRunner
    from mindbatch.kernels.choice import choose_kernels
    from mindbatch.kernels.interface import CacheGeometry

    kernels = choose_kernels("auto", "Ascend", dtype=dtype)
    geometry = CacheGeometry(settings.num_blocks, settings.block_size)
    model = load_native(arch, NoWeights(arch, shard), kernels, geometry)
    return ModelRunner(model, settings)


def _compile_all(runner: ModelRunner, settings: EngineSettings, hidden_size: int) -> Iterator[dict[str, Any]]:
    for sample in sample_steps(settings):
        yield from _compiled(sample.kind, sample.tokens, partial(runner.run, sample.step))
    for rows in buckets_up_to(settings.batch_size):
        yield from _compiled(HEAD, rows, partial(runner.project, np.zeros((rows, hidden_size), np.float32)))
    yield from _compiled(COPY, 1, partial(runner.cache.copy_blocks, [(0, 0)]))


def _compiled(kind: str, tokens: int, run: Callable[[], object]) -> Iterator[dict[str, Any]]:
    graph = {"kind": kind, "tokens": tokens}
    yield graph
    started = time.perf_counter()
    try:
        run()
        found: dict[str, Any] = {"kernels": launched(_OUTPUT)}
    except Exception as error:  # of MindSpore, which raises all kinds for an operator that it refuses
        refused = refusal_of(error, _OUTPUT)
        found = vars(refused)
    yield {**graph, "seconds": time.perf_counter() - started, **found}
