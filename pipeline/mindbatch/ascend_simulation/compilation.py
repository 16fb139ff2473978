"""Compiles the graphs of a model's ranks in the simulation of Ascend, without weights.

MindSpore "runs" each compiled graph there: outputs have the right shapes, but no meaningful values.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mindbatch.architecture.architecture import Architecture, BlockPositions2D
from mindbatch.ascend_simulation.no_weights import NoWeights, sources_of_layers
from mindbatch.ascend_simulation.process import as_rank
from mindbatch.ascend_simulation.saved_graphs import launched, refusal_of
from mindbatch.backends import native
from mindbatch.backends.adapter_weights import FittedAdapters
from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config_json.reader import IgnoredKeys
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import Row
from mindbatch.engine.buckets import buckets_up_to
from mindbatch.engine.request import Request
from mindbatch.engine.sequence import PromptContext, SequenceGroup
from mindbatch.engine.sequence import Sequence as TokenSequence
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import ScheduledTokens, Step
from mindbatch.io.errors import BackendError
from mindbatch.loading.prepared_adapters import open_adapters
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.parallel.topology import RankPart, Stage, Topology

if TYPE_CHECKING:  # in the child alone
    from mindbatch.backends.model import Model
    from mindbatch.engine.model_runner import ModelRunner
    from mindbatch.kernels.interface import Kernels
    from mindbatch.kernels.shapes import CacheGeometry

DECODE, PROMPT, CHUNK = "decode", "prefill", "prefill after cached tokens"


def sample_steps(settings: EngineSettings, *, few: bool = False) -> Iterator[tuple[str, Step]]:
    """Yields a step for each bucket of each kind: DECODE (one token per sequence), PROMPT (the start of a
    prompt) and CHUNK (the continuation of a prompt).

    few: see `buckets_up_to`.
    """
    has_encoder = settings.decoder_start_id is not None
    decoded = (1, 2) if has_encoder else (0, 1)
    for tokens in buckets_up_to(settings.batch_size, few=few):
        yield DECODE, _step(settings, [decoded] * tokens, num_logits=1)
    for kind, first in ((PROMPT, 0), (CHUNK, 1))[: 1 if has_encoder else 2]:
        max_length = min(settings.seq_length, settings.num_blocks * settings.block_size) - first
        for tokens in buckets_up_to(settings.max_batched_tokens, few=few):
            if tokens > 1 and max_length > 1:  # a single token is decoded
                yield kind, _step(settings, _spans(tokens, first, max_length))


def _spans(tokens: int, first: int, max_length: int) -> list[tuple[int, int]]:
    """Divides tokens into sequences of at most max_length."""
    full, rest = divmod(tokens, max_length)
    sizes = [max_length] * full + [rest] * (rest > 0)
    return [(first, first + size) for size in sizes]


def _step(settings: EngineSettings, spans: list[tuple[int, int]], num_logits: int = 0) -> Step:
    scheduled = []
    for number, (start, stop) in enumerate(spans):
        group = _group(stop, with_encoder=settings.decoder_start_id is not None)
        (sequence,) = group.sequences
        sequence.context = None if settings.two_positions is None else PromptContext(stop, 0)
        blocks = settings.blocks_for(stop)
        first = number * blocks
        sequence.block_table = [block % settings.num_blocks for block in range(first, first + blocks)]
        scheduled.append(ScheduledTokens(group, sequence, start, stop, num_logits))
    return Step(scheduled, num_tokens=sum(stop - start for start, stop in spans))


def _group(length: int, *, with_encoder: bool) -> SequenceGroup:
    """Makes a group of one sequence. with_encoder: all tokens but the last are the encoder's input."""
    params, tokens = DecodingParams(), (0,) * length
    prompt, inputs = (tokens[-1:], tokens[:-1]) if with_encoder else (tokens, ())
    row = Row(params, prompt, [], (), row_hash=0, encoder_token_ids=inputs)
    return SequenceGroup(
        Request("", prompt, params), strategy_for(params), [TokenSequence(row, None)], length + 1
    )


HEAD, COPY = "head", "copies of blocks"
_OUTPUT = Path()  # the current folder, which the simulation sets


def compile_ranks(job: str) -> Iterator[dict[str, Any]]:
    """Compiles the graphs of the job's ranks and yields a report before and after each graph.

    The report before is {"rank", "kind", "tokens"}. The one after also has "seconds", and either "kernels",
    the number of launches by kernel (none if the same graph was compiled before), or "operator", "rule" and
    "layer" of the operator that was refused. A rank that fails yields {"rank", "error"}. A rank of a
    MindFormers model first yields {"rank", "layer_bytes", "other_bytes"} of its weights.

    job: JSON with the keys network (see model.provider), config (content of config.json), source,
        model_type, ignore, layers (of each stage of a native model), lora (the section, optional, for native
        models), dtype, settings (of an engine), model_parallel, pipeline_stage, ranks. Each replica is a
        world of its own, as in a run.
    """
    todo = json.loads(job)
    _import_networks(todo)
    gc.freeze()  # each compilation collects garbage; modules are excluded from that
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
    make = _native if todo["network"] == "native" else _mindformers
    model = make(todo, kernels, CacheGeometry(settings.num_blocks, settings.block_size), part)
    if model.weight_bytes:
        yield {**model.weight_bytes}
    runner, few = ModelRunner(model.model, settings), model.model.few_graphs
    yield from _compile_steps(runner, settings, few=few)
    if part.is_last:
        yield from _compile_heads(runner, settings, model.hidden_size, few=few)
    yield from _compiled(COPY, 1, partial(runner.cache.copy_blocks, [(0, 0)]))


def _settings(fields: Mapping[str, Any]) -> EngineSettings:
    positions = fields.get("two_positions")
    two_positions = None if positions is None else BlockPositions2D(**positions)
    return EngineSettings(**{**fields, "two_positions": two_positions})


def _compile_steps(runner: ModelRunner, settings: EngineSettings, *, few: bool) -> Iterator[dict[str, Any]]:
    for kind, step in sample_steps(settings, few=few):
        yield from _compiled(kind, step.num_tokens, partial(runner.run, step))


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
    except Exception as error:  # MindSpore raises many types for an operator that it refuses
        outcome = {**refusal_of(error, _OUTPUT)}
    yield {**graph, "seconds": time.perf_counter() - started, **outcome}


class Weightless(NamedTuple):
    """A rank's network with its cache, without weights.

    hidden_size: the width of the head's input.
    weight_bytes: "layer_bytes" of each layer and "other_bytes"; empty if the spec has them.
    """

    model: Model
    hidden_size: int
    weight_bytes: Mapping[str, Any]


def _import_networks(todo: Mapping[str, Any]) -> None:
    """Imports the modules that all ranks of a job need, before they are forked."""
    import mindbatch.engine.model_runner  # noqa: F401  MindSpore

    if todo["network"] == "mindformers":
        from mindbatch.backends.mindformers.network import import_network

        import_network(todo["config"]["model_type"])


def _native(todo: Mapping[str, Any], kernels: Kernels, geometry: CacheGeometry, part: RankPart) -> Weightless:
    ignore, layers = IgnoredKeys(todo["ignore"]), todo["layers"][part.stage]
    full = describe(todo["config"], todo["model_type"], todo["source"], ignore=ignore)
    arch, stage = full.with_layers(layers), Stage(range(len(layers)), part.stage, part.stages)
    spec, adapters = ModelSpec(arch, part.shard, stage, (stage,)), _adapters(todo, full, layers)
    model = native.load(spec, NoWeights.of(arch), kernels, geometry, adapters=adapters)
    [embedding] = (parameter for parameter in spec.parameters if parameter.name == "embedding.weight")
    return Weightless(model, embedding.parts[0].inputs or arch.hidden_size, {})


def _adapters(todo: Mapping[str, Any], full: Architecture, layers: Sequence[int]) -> FittedAdapters | None:
    """Opens the job's adapters of these layers; the norms of DoRA are those of zero weights."""
    lora = LoraConfig(**todo.get("lora", {}))
    if not lora.folders:
        return None
    fitted = native.fit_adapters(ModelSpec.of(full), open_adapters(lora), lora.max_loaded)
    sample = tensor_specs(full.with_layers(layers))
    return _of_layers(fitted, sources_of_layers(tensor_specs(full), sample, layers))


def _of_layers(fitted: FittedAdapters, renamed: Mapping[str, str]) -> FittedAdapters:
    """Selects the modules of tensors with these names, and renames them."""
    kept = {
        name: replace(
            adapter,
            modules={renamed[name]: module for name, module in adapter.modules.items() if name in renamed},
        )
        for name, adapter in fitted.adapters.items()
    }
    return replace(fitted, adapters=kept)


def _mindformers(
    todo: Mapping[str, Any], kernels: Kernels, geometry: CacheGeometry, part: RankPart
) -> Weightless:
    from mindbatch.backends.mindformers import families
    from mindbatch.backends.mindformers.graph_kernels import compiled
    from mindbatch.backends.mindformers.network import assemble, build_network

    ignore = IgnoredKeys(todo["ignore"])
    spec = families.describe(todo["config"], todo["source"], ignore=ignore, shard=part.shard)
    graph_kernels, arch = compiled(kernels), spec.architecture
    network = build_network(spec, graph_kernels)
    layers = [*map(_nbytes, network.model.decoder.layers)]
    weight_bytes = {"layer_bytes": layers, "other_bytes": _nbytes(network) - sum(layers)}
    return Weightless(assemble(network, arch, graph_kernels, geometry), arch.hidden_size, weight_bytes)


def _nbytes(cell: Any) -> int:
    return sum(parameter.nbytes for _, parameter in cell.parameters_and_names())
