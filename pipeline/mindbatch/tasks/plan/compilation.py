"""`mindbatch plan compile=true`: the graphs of ranks, compiled for Ascend in simulation."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from mindbatch.config.machine import parse_bytes
from mindbatch.engine.settings import EngineSettings
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.io.screen_text import say, show, show_json
from mindbatch.kernels.memory import kernel_dtype
from mindbatch.loading.setup import engine_settings
from mindbatch.parallel.topology import Topology
from mindbatch.tasks.plan.compilation_job import CompilationJob, compilation_job
from mindbatch.tasks.plan.compilation_page import compilation_page
from mindbatch.tasks.plan.compilation_report import CompiledGraph, DeviceMemory, RankReport, Report
from mindbatch.tasks.plan.compile_keys import RESERVE_BYTES, chosen_ranks
from mindbatch.tasks.plan.found_layout import FindLayout, FoundLayout
from mindbatch.tasks.plan.ranks import plan_ranks, write_files
from mindbatch.tasks.plan.ranks_report import ranks_json, ranks_page
from mindbatch.tasks.plan.schema import PlanConfig

_COMPILED_BLOCKS = 16
"""Blocks that a cache is compiled with, at least: their number is a size of one dimension and no more."""


def run(config: PlanConfig) -> int:
    """Prints what was compiled and what was refused, and below it the layout where layout.dir is given.

    EXIT_FAILED where something was refused, or does not fit.
    """
    report, job = _plan(config)
    find_layout = _prepare_layout(config) if config.layout.dir is not None else None
    ranks = {rank.rank: rank for rank in report.ranks}
    for answer in _answers(config, job):
        _take(ranks[answer["rank"]], answer)
    layout = None if find_layout is None else find_layout()
    if config.report == "json":
        show_json(report.as_json() | ({} if layout is None else {"layout": layout.json}))
    else:
        show("\n\n".join([compilation_page(report), *([] if layout is None else [layout.page])]))
    return EXIT_DONE if report.is_good else EXIT_FAILED


def _plan(config: PlanConfig) -> tuple[Report, dict[str, Any]]:
    """The report, without graphs yet, and what the simulation is told; nothing costly is done.

    Raises:
        ConfigError, CheckpointError: the model cannot be described, cut so, or run so.
    """
    job, parallel = compilation_job(config), config.parallel
    stages = parallel.pipeline_stage
    topology = Topology(parallel.data_parallel, parallel.model_parallel, stages, parallel.layer_counts)
    settings = engine_settings(job.spec, config.model, config.runtime)
    dtype = kernel_dtype(config.model.dtype, "Ascend")
    ranks = tuple(
        _rank(rank, job, topology, config, settings) for rank in chosen_ranks(config.ranks, parallel)
    )
    report = Report(job.spec.model_type, dtype.name, topology, job.spec.architecture.num_layers, ranks)
    told = {
        **job.told,
        "dtype": config.model.dtype,
        "settings": asdict(_compiled_settings(settings)),
        "model_parallel": parallel.model_parallel,
        "pipeline_stage": stages,
        "ranks": [rank.rank for rank in ranks],
    }
    return report, told


def _prepare_layout(config: PlanConfig) -> FindLayout:
    """See `mindformers.prepare_layout`; of a native model this project's own layout, in the compiled type."""
    if config.model.provider == "mindformers":
        from mindbatch.tasks.plan import mindformers

        return mindformers.prepare_layout(config)
    dtype = kernel_dtype(config.model.dtype, "Ascend").name
    ranks = plan_ranks(replace(config, model=replace(config.model, dtype=dtype)))

    def find() -> FoundLayout:
        paths = write_files(config, ranks)
        return FoundLayout(ranks_json(ranks, paths), ranks_page(ranks, paths))

    return find


def _rank(
    rank: int, job: CompilationJob, topology: Topology, config: PlanConfig, settings: EngineSettings
) -> RankReport:
    stage, itemsize = topology.coordinates(rank).stage, kernel_dtype(config.model.dtype, "Ascend").itemsize
    held = job.spec.stages[stage]
    available = parse_bytes(config.runtime.device_memory) - RESERVE_BYTES
    token_bytes = job.spec.cache_bytes_per_token(itemsize, "Ascend", held)
    whole = replace(settings, num_blocks=settings.num_blocks * topology.pipeline_stage)  # of all engines
    weights, adapters = job.weights(stage) * itemsize, job.adapter_numbers(stage) * itemsize
    memory = DeviceMemory(available, weights, token_bytes, whole, adapters)
    return RankReport(rank, held, topology.slice_of(rank), job.layers[stage], memory, job.counts)


def _compiled_settings(settings: EngineSettings) -> EngineSettings:
    """The same with no larger a cache than block tables name."""
    needed = max(settings.blocks_per_sequence, _COMPILED_BLOCKS)
    return replace(settings, num_blocks=min(settings.num_blocks, needed))


def _answers(config: PlanConfig, job: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    from mindbatch.ascend_simulation.compilation import compile_ranks
    from mindbatch.ascend_simulation.process import SimulationLimits, simulate

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
    elif "layer_bytes" in found:
        rank.weigh(found["other_bytes"], found["layer_bytes"])
    elif "seconds" in found:
        graph = CompiledGraph(**found)
        rank.graphs[-1:] = [graph] if graph.kernels or graph.rule is not None else []
    else:
        rank.graphs.append(CompiledGraph(**found))
