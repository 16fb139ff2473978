"""`mindbatch plan compile=true`: the graphs of ranks, compiled for Ascend in simulation."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from mindbatch.backends.simulation.process import SimulationLimits, simulate
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, existing_folder, read_config
from mindbatch.checkpoint.placement.placements import placements
from mindbatch.config.memory import parse_bytes
from mindbatch.engine.build import engine_settings
from mindbatch.engine.compilation import compile_ranks
from mindbatch.engine.described import ignored_keys
from mindbatch.engine.settings import EngineSettings
from mindbatch.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.kernels.memory import kernel_dtype
from mindbatch.models.native_model import facts_of
from mindbatch.models.no_weights import sampled_layers
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.parallel.topology import Topology
from mindbatch.screen_text import say, show, show_json
from mindbatch.tasks.plan.compilation_page import compilation_page
from mindbatch.tasks.plan.compilation_report import CompiledGraph, DeviceMemory, RankReport, Report
from mindbatch.tasks.plan.compile_keys import RESERVE_BYTES, chosen_ranks
from mindbatch.tasks.plan.schema import PlanConfig

_COMPILED_BLOCKS = 16
"""Blocks that a cache is compiled with, at least: their number is a size of one dimension and no more."""


def run(config: PlanConfig) -> int:
    """Prints what was compiled and what was refused; EXIT_FAILED where something was, or does not fit."""
    report, job = _plan(config)
    ranks = {rank.rank: rank for rank in report.ranks}
    for answer in _answers(config, job):
        _take(ranks[answer["rank"]], answer)
    if config.report == "json":
        show_json(report.as_json())
    else:
        show(compilation_page(report))
    return EXIT_DONE if report.is_good else EXIT_FAILED


def _plan(config: PlanConfig) -> tuple[Report, dict[str, Any]]:
    """The report, without graphs yet, and what the simulation is told; nothing costly is done.

    Raises:
        ConfigError, CheckpointError: the model cannot be described, cut so, or run so.
    """
    model, parallel, runtime = config.model, config.parallel, config.runtime
    assert model.checkpoint_name_or_path is not None
    folder = existing_folder(model.checkpoint_name_or_path)
    source, content, ignore = str(folder / CONFIG_NAME), read_config(folder), ignored_keys(model)
    arch = describe(content, model.type, source, ignore=ignore)
    specs, size = tensor_specs(arch), parallel.model_parallel
    placements(specs, size, 1, keys="parallel.")
    float_type = kernel_dtype(model.dtype, "Ascend")
    facts = facts_of(arch, size)
    settings = engine_settings(facts, model, runtime)
    layers = sampled_layers(arch) if config.layers == "sample" else tuple(range(arch.num_layers))
    topology = Topology(parallel.data_parallel, size)
    memory = parse_bytes(runtime.device_memory) - RESERVE_BYTES
    token_bytes = facts.cache_bytes_per_token(float_type.itemsize)
    ranks = []
    for rank in chosen_ranks(config.ranks, parallel):
        shard = topology.slice_of(rank)
        numbers = sum(spec.local_outputs(shard) * (spec.local_inputs(shard) or 1) for spec in specs)
        held = DeviceMemory(memory, numbers * float_type.itemsize, token_bytes, settings)
        ranks.append(RankReport(rank, held))
    report = Report(arch.model_type, float_type.name, topology, arch.num_layers, layers, tuple(ranks))
    job = {
        "config": content,
        "source": source,
        "model_type": model.type,
        "ignore": [*ignore.names],
        "layers": layers,
        "dtype": model.dtype,
        "settings": asdict(_compiled_settings(settings)),
        "data_parallel": parallel.data_parallel,
        "model_parallel": size,
        "ranks": [rank.rank for rank in ranks],
    }
    return report, job


def _compiled_settings(settings: EngineSettings) -> EngineSettings:
    """The same with no larger a cache than block tables name."""
    needed = max(settings.blocks_per_sequence, _COMPILED_BLOCKS)
    return replace(settings, num_blocks=min(settings.num_blocks, needed))


def _answers(config: PlanConfig, job: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    limits = SimulationLimits(seconds=config.layout.timeout, seconds_key="layout.timeout")
    current = None
    for answer in simulate(compile_ranks, json.dumps(job), limits=limits, verbose=config.runtime.verbose):
        if answer["rank"] != current and sys.stderr.isatty():
            current = answer["rank"]
            say(f"compiling the graphs of rank {current}")
        yield answer


def _take(rank: RankReport, answer: Mapping[str, Any]) -> None:
    """A graph is told before it is compiled, and after; one that there was already is left out."""
    found = {name: value for name, value in answer.items() if name != "rank"}
    if "error" in found:
        rank.end(str(found["error"]))
    elif "seconds" in found:
        graph = CompiledGraph(**found)
        rank.graphs[-1:] = [graph] if graph.kernels or graph.rule is not None else []
    else:
        rank.graphs.append(CompiledGraph(**found))
