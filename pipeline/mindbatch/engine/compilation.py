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
from mindbatch.models.config_reader import IgnoredKeys
from mindbatch.models.native_model import load_native
from mindbatch.models.no_weights import NoWeights, with_layers
from mindbatch.models.registry import describe
from mindbatch.parallel.topology import TensorSlice, Topology

if TYPE_CHECKING:  # in the child alone
    from mindbatch.engine.model_runner import ModelRunner
    from mindbatch.kernels.interface import CacheGeometry, Kernels
    from mindbatch.models.runnable import RunnableModel

HEAD, COPY = "head", "copies of blocks"
_OUTPUT = Path()  # the current folder, which the simulation gives


def compile_ranks(job: str) -> Iterator[dict[str, Any]]:
    """For each rank of the job and each of its graphs: {"rank", "kind", "tokens"} before it is compiled, and
    after it the same with "seconds", and "kernels", how often each is launched (none: it is a graph that was
    compiled before), or "operator", "rule" and "layer" of what was refused.

    A rank that ends otherwise than it should: {"rank", "error"}.

    A rank of MindFormers' models begins with {"rank", "layer_bytes", "other_bytes"} of its weights.

    job: JSON: provider, config (of config.json), source, model_type, ignore, layers, dtype, settings (of the
        engine), data_parallel, model_parallel, ranks.
    """
    import mindbatch.engine.model_runner  # noqa: F401  MindSpore, once for all forks

    todo = json.loads(job)
    if todo["provider"] == "mindformers":
        from mindbatch.backends.mindformers.network import import_network

        import_network(todo["config"]["model_type"])
    gc.freeze()  # each compilation collects garbage: what is imported is none
    size = todo["data_parallel"] * todo["model_parallel"]
    for rank in todo["ranks"]:
        try:
            for graph in as_rank(rank, size, partial(_compile_rank, todo, rank)):
                yield {"rank": rank, **graph}
        except BackendError as error:
            yield {"rank": rank, "error": str(error)}


def _compile_rank(todo: Mapping[str, Any], rank: int) -> Iterator[dict[str, Any]]:
    from mindbatch.engine.model_runner import ModelRunner
    from mindbatch.kernels.choice import choose_kernels
    from mindbatch.kernels.interface import CacheGeometry
    from mindbatch.parallel.context import initialise, join_group

    topology = Topology(todo["data_parallel"], todo["model_parallel"])
    initialise("Ascend")
    join_group(topology, rank)
    settings = EngineSettings(**todo["settings"])
    kernels = choose_kernels("auto", "Ascend", dtype=todo["dtype"])
    geometry = CacheGeometry(settings.num_blocks, settings.block_size)
    if todo["provider"] == "mindformers":
        model, hidden_size, weights = _mindformers(todo, kernels, geometry, topology.slice_of(rank))
        yield weights
    else:
        model, hidden_size = _native(todo, kernels, geometry, topology.slice_of(rank))
    yield from _compile_all(ModelRunner(model, settings), settings, hidden_size, few=model.few_graphs)


def _native(
    todo: Mapping[str, Any], kernels: Kernels, geometry: CacheGeometry, shard: TensorSlice
) -> tuple[RunnableModel, int]:
    """A model of this project, of the job's layers, with its hidden size."""
    ignore = IgnoredKeys(todo["ignore"])
    whole = describe(todo["config"], todo["model_type"], todo["source"], ignore=ignore)
    arch = with_layers(whole, todo["layers"])
    return load_native(arch, NoWeights(arch, shard), kernels, geometry), arch.hidden_size


def _mindformers(
    todo: Mapping[str, Any], kernels: Kernels, geometry: CacheGeometry, shard: TensorSlice
) -> tuple[RunnableModel, int, dict[str, Any]]:
    """MindFormers' own model with its hidden size, and the bytes of its layers and of all else."""
    from mindbatch.backends.mindformers import families
    from mindbatch.backends.mindformers.network import assemble, build_network

    described = families.describe(todo["config"], todo["source"], ignore=IgnoredKeys(todo["ignore"]))
    network = build_network(described, kernels, shard)
    layers = network.model.decoder.layers
    sizes = [sum(each.nbytes for each in layer.get_parameters()) for layer in layers]
    others = sum(each.nbytes for each in network.get_parameters()) - sum(sizes)
    weights = {"layer_bytes": sizes, "other_bytes": others}
    return assemble(network, described, kernels, geometry), described.hidden_size, weights


def _compile_all(
    runner: ModelRunner, settings: EngineSettings, hidden_size: int, *, few: bool
) -> Iterator[dict[str, Any]]:
    for sample in sample_steps(settings, few=few):
        yield from _compiled(sample.kind, sample.tokens, partial(runner.run, sample.step))
    for rows in buckets_up_to(settings.batch_size, few=few):
        hidden = np.zeros((rows, hidden_size), np.float32)
        yield from _compiled(HEAD, rows, partial(runner.project, hidden))
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
