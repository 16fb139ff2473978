"""`mindbatch compile`: the graphs of ranks, compiled for Ascend in simulation."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.stage_cut import even_in_time
from mindbatch.backends import native
from mindbatch.backends.adapter_weights import FittedAdapters
from mindbatch.checkpoint.folders.folder_files import existing_folder
from mindbatch.config.machine import parse_bytes
from mindbatch.config.model_schema import ignored_keys
from mindbatch.engine.settings import EngineSettings
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, ConfigError
from mindbatch.io.screen_text import say
from mindbatch.kernels.memory import kernel_dtype
from mindbatch.loading.prepared_adapters import open_adapters
from mindbatch.loading.setup import engine_settings
from mindbatch.model_spec.described_folder import check_division, described_config
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import tensor_specs
from mindbatch.parallel.topology import RankPart, TensorSlice, Topology
from mindbatch.tasks.compile.report import (
    RankReport,
    compilation_page,
    device_memory,
    report_json,
)
from mindbatch.tasks.compile.schema import ALL, RESERVE_BYTES, CompileConfig
from mindbatch.tasks.layout.parts import FindLayout, PlanPart, show_parts
from mindbatch.tasks.layout.ranks import plan_ranks, write_layout

_COMPILED_BLOCKS = 16
"""Least number of blocks of a compiled cache. It is the size of a dimension, and changes no operator."""


def run(config: CompileConfig) -> int:
    """Prints the compiled and the refused graphs, and, with layout.dir, the layout below.

    Returns EXIT_FAILED if a graph was refused, or a rank does not fit its NPU.

    Raises:
        ConfigError, CheckpointError: the model is not supported, or not with these ranks and settings.
    """
    job = _compilation_job(config)
    settings = engine_settings(job.spec, config.model, config.runtime)
    ranks = {rank: _rank(rank, job, config, settings) for rank in _chosen_ranks(config)}
    find_layout = _prepare_layout(config) if config.layout.dir is not None else None
    for answer in _answers(config, job, settings, [*ranks]):
        ranks[answer["rank"]].take(answer)
    layout = None if find_layout is None else find_layout()
    dtype = kernel_dtype(config.model.dtype, "Ascend").name
    report = report_json(job.spec, dtype, config.parallel, ranks.values())
    show_parts(config.report, PlanPart(report, compilation_page(report)), layout=layout)
    return EXIT_DONE if report["is_good"] else EXIT_FAILED


def _chosen_ranks(config: CompileConfig) -> list[int]:
    """Lists the ranks to compile for. ALL means the first replica: the others are the same."""
    ranks, parallel = config.ranks, config.parallel
    if ranks == ALL:
        return [*range(parallel.model_parallel * parallel.pipeline_stage)]
    return [*ranks] if isinstance(ranks, list | tuple) else [ranks]


def _prepare_layout(config: CompileConfig) -> FindLayout:
    """Prepares MindSpore's layout, or for a native model MindBatch's own, in the compiled type."""
    if config.model.provider == "mindformers":
        from mindbatch.tasks.layout import mindformers

        return mindformers.prepare_layout(config)
    dtype = kernel_dtype(config.model.dtype, "Ascend").name
    assert config.layout.dir is not None
    folder = Path(config.layout.dir)
    ranks = plan_ranks(replace(config.model, dtype=dtype), config.parallel, folder)
    return partial(write_layout, ranks, folder, config.layout.replace)


def _rank(rank: int, job: CompilationJob, config: CompileConfig, settings: EngineSettings) -> RankReport:
    parallel, itemsize = config.parallel, kernel_dtype(config.model.dtype, "Ascend").itemsize
    topology = Topology(parallel.data_parallel, parallel.model_parallel, parallel.pipeline_stage)
    _, stage, tensor_rank = topology.coordinates(rank)
    part = job.spec.stages[stage]
    described_rank = {
        "rank": rank,
        "stage": stage,
        "tensor_rank": tensor_rank,
        "stage_layers": [*part.layers],
        "compiled_layers": [*job.layers[stage]],
    }
    whole = replace(settings, num_blocks=settings.num_blocks * topology.pipeline_stage)  # of all engines
    memory = partial(
        device_memory,
        parse_bytes(config.runtime.device_memory) - RESERVE_BYTES,
        adapters=job.adapter_numbers(stage) * itemsize,
        bytes_per_token=job.spec.cache_bytes_per_token(itemsize, "Ascend", part),
        settings=whole,
    )
    return RankReport(described_rank, job.weights(stage) * itemsize, memory, job.counts)


def _compiled_settings(settings: EngineSettings) -> EngineSettings:
    """Limits the cache of the settings to the blocks that block tables need."""
    needed = max(settings.blocks_per_sequence, _COMPILED_BLOCKS)
    return replace(settings, num_blocks=min(settings.num_blocks, needed))


def _answers(
    config: CompileConfig, job: CompilationJob, settings: EngineSettings, ranks: Sequence[int]
) -> Iterator[Mapping[str, Any]]:
    from mindbatch.ascend_simulation.compilation import compile_ranks
    from mindbatch.ascend_simulation.process import simulate

    request = {
        **job.request,
        "dtype": config.model.dtype,
        "settings": asdict(_compiled_settings(settings)),
        "model_parallel": config.parallel.model_parallel,
        "pipeline_stage": config.parallel.pipeline_stage,
        "ranks": ranks,
    }
    current = None
    for answer in simulate(
        compile_ranks, json.dumps(request), seconds=config.layout.timeout, verbose=config.verbose
    ):
        if answer["rank"] != current and sys.stderr.isatty():
            current = answer["rank"]
            say(f"compiling the graphs of rank {current}")
        yield answer


@dataclass(frozen=True)
class CompilationJob:
    """Specification of a model's compilation.

    layers: the compiled layers of each stage.
    counts: how many layers each of these stands for, if only the built network knows the bytes of a layer;
        empty if the spec knows them.
    request: the job as JSON, which the simulation reads.
    """

    spec: ModelSpec
    layers: tuple[tuple[int, ...], ...]
    request: Mapping[str, Any]
    adapters: FittedAdapters | None = None
    counts: tuple[int, ...] = ()

    def weights(self, stage: int) -> int:
        """Counts the weights of a rank of a stage; 0 if only the built network knows them."""
        return 0 if self.counts else self.spec.rank_parameters[stage]

    def adapter_numbers(self, stage: int) -> int:
        """Counts numbers in a rank's slots and zeros for the base, each as large as the largest adapter."""
        return (
            0 if self.adapters is None else (self.adapters.max_loaded + 1) * self.adapters.slot_numbers[stage]
        )


def _compilation_job(config: CompileConfig) -> CompilationJob:
    """Reads config.json and the adapters, but no weights.

    Raises:
        ConfigError, CheckpointError: the model is not supported, or cannot be divided over the ranks.
    """
    assert config.model.checkpoint_name_or_path is not None
    folder, ignore = existing_folder(config.model.checkpoint_name_or_path), ignored_keys(config.model)
    is_native = config.model.provider == "native"
    described = described_config(folder, config.model.type if is_native else "auto", ignore)
    request = {
        "network": config.model.provider,
        "config": described.content,
        "source": described.source,
        "model_type": config.model.type,
        "ignore": [*ignore.names],
    }
    if config.layout.qkv_concat:
        raise ConfigError("layout.qkv_concat=true: has no effect on compiled graphs; remove it")
    return _native(config, request, described.architecture) if is_native else _mindformers(config, request)


def _native(config: CompileConfig, request: Mapping[str, Any], arch: Architecture) -> CompilationJob:
    parallel = config.parallel
    size, stages, device_map = parallel.model_parallel, parallel.pipeline_stage, parallel.layer_counts
    check_division(arch, size, stages, device_map)
    if device_map is None and config.layout.dir is None:  # strategy files are of even stages
        device_map = even_in_time(tensor_specs(arch), stages)
    spec = ModelSpec.of(arch, RankPart(TensorSlice(0, size), stages=stages), device_map)
    opened = open_adapters(config.lora)
    adapters = native.fit_adapters(spec, opened, config.lora.max_loaded) if opened else None
    is_sample = config.layers == "sample"
    layers = tuple(
        sampled_layers(arch, stage.layers) if is_sample else (*stage.layers,) for stage in spec.stages
    )
    lora = {"adapters": config.lora.adapters, "max_loaded": config.lora.max_loaded}
    return CompilationJob(spec, layers, {**request, "layers": layers, "lora": lora}, adapters)


def _mindformers(config: CompileConfig, request: Mapping[str, Any]) -> CompilationJob:
    from mindbatch.backends.mindformers import families

    if config.lora.folders:
        raise ConfigError(families.NOT_ON_ASCEND)
    shard, ignore = TensorSlice(0, config.parallel.model_parallel), ignored_keys(config.model)
    spec = families.describe(request["config"], request["source"], ignore=ignore, shard=shard)
    is_whole = config.layers == "all"
    counts, sample = families.layer_sample(spec.architecture, request["config"], all_layers=is_whole)
    return CompilationJob(spec, ((*counts,),), {**request, "config": sample}, counts=(*counts.values(),))


def sampled_layers(arch: Architecture, layers: range) -> tuple[int, ...]:
    """Selects layers that stand for a stage: the first two, the last, and the first of each kind."""
    kinds: dict[object, int] = {}
    for layer in layers:
        sparse = arch.experts is not None and layer in arch.experts.layers
        kind = (arch.windows[layer], arch.attention_scales[layer], arch.rotary_of(layer), sparse)
        kinds.setdefault(kind, layer)
    return tuple(sorted({*layers[:2], layers[-1], *kinds.values()}))
