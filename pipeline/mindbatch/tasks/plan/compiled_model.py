"""The model that `mindbatch plan compile=true` compiles, of either provider: described from config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mindbatch.ascend_check.weightless import MINDFORMERS, NATIVE
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, existing_folder, read_config
from mindbatch.checkpoint.placement.placements import check_sizes
from mindbatch.config.model_schema import ignored_keys
from mindbatch.errors import ConfigError
from mindbatch.loading.prepared_adapters import open_adapters
from mindbatch.models.adapter_weights import AdapterPlaces, FittedAdapters, rank_places
from mindbatch.models.architecture import Architecture
from mindbatch.models.model_facts import ModelFacts
from mindbatch.models.native_model import facts_of, fit_native
from mindbatch.models.no_weights import sampled_layers
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.models.stage_cut import cut, even_in_time, stage_specs
from mindbatch.models.tensor_spec import TensorSpec
from mindbatch.parallel.topology import Stage, TensorSlice
from mindbatch.tasks.plan.schema import PlanConfig


@dataclass(frozen=True)
class CompiledStage:
    """What the ranks of a pipeline stage hold. facts: with the cache of one rank.

    layers: those of the stage that are compiled. counts: how many layers each of them stands for.
    numbers: of a rank's weights; None where only the network that is built can tell. adapter_numbers: of the
    adapters that it may have loaded at a time.
    """

    stage: Stage
    facts: ModelFacts
    layers: tuple[int, ...]
    counts: tuple[int, ...] = ()
    numbers: Callable[[TensorSlice], int] | None = None
    adapter_numbers: Callable[[TensorSlice], int] = lambda shard: 0


@dataclass(frozen=True)
class CompiledModel:
    """facts: with the cache of the rank that has the most layers. job: what the simulation is told of it."""

    facts: ModelFacts
    num_layers: int
    stages: tuple[CompiledStage, ...]
    job: Mapping[str, Any]


def compiled_model(config: PlanConfig) -> CompiledModel:
    """Reads config.json and nothing else.

    Raises:
        ConfigError, CheckpointError: the model cannot be described, or cut over the ranks.
    """
    assert config.model.checkpoint_name_or_path is not None
    folder = existing_folder(config.model.checkpoint_name_or_path)
    content = read_config(folder)
    job = {
        "config": content,
        "source": str(folder / CONFIG_NAME),
        "model_type": config.model.type,
        "ignore": [*ignored_keys(config.model).names],
    }
    if config.layout.qkv_concat:
        raise ConfigError("layout.qkv_concat=true: has no effect with compile=true; remove it")
    return _mindformers(config, job) if config.model.provider == MINDFORMERS else _native(config, job)


def _native(config: PlanConfig, job: Mapping[str, Any]) -> CompiledModel:
    arch, parallel = _architecture(config, job), config.parallel
    specs, size, device_map = tensor_specs(arch), parallel.model_parallel, parallel.layer_counts
    check_sizes(specs, size, parallel.pipeline_stage, device_map, keys="parallel.")
    if device_map is None and config.layout.dir is None:  # strategy files are of even stages
        device_map = even_in_time(specs, parallel.pipeline_stage)
    fitted = _fitted(config, partial(fit_native, arch))
    stages = tuple(
        CompiledStage(
            stage,
            facts_of(arch, size, len(stage.layers)),
            sampled_layers(arch, stage.layers) if config.layers == "sample" else (*stage.layers,),
            numbers=_counter(stage_specs(specs, stage)),
            adapter_numbers=partial(_adapter_numbers, fitted, partial(_native_places, specs, stage)),
        )
        for stage in cut(specs, parallel.pipeline_stage, device_map)
    )
    facts = facts_of(arch, size, max(len(each.stage.layers) for each in stages))
    layers = [each.layers for each in stages]
    told = {**job, "network": NATIVE, "layers": layers, "lora": _lora(config)}
    return CompiledModel(facts, arch.num_layers, stages, told)


def _counter(specs: Sequence[TensorSpec]) -> Callable[[TensorSlice], int]:
    """Counts the numbers that a rank holds of these parameters."""
    return lambda shard: sum(spec.numbers(shard) for spec in specs)


def _lora(config: PlanConfig) -> dict[str, Any]:
    """The adapters, as the simulation is told of them."""
    return {"adapters": config.lora.adapters, "max_loaded": config.lora.max_loaded}


def _fitted(config: PlanConfig, fit: Callable[..., FittedAdapters]) -> FittedAdapters | None:
    """The adapters, checked against the whole model; None without any that is a folder."""
    opened = open_adapters(config.lora)
    return fit(opened, config.lora.max_loaded) if opened else None


def _native_places(
    specs: Sequence[TensorSpec], stage: Stage, fitted: FittedAdapters, shard: TensorSlice
) -> AdapterPlaces:
    return rank_places(specs, fitted, shard, stage)


def _adapter_numbers(
    fitted: FittedAdapters | None,
    places: Callable[[FittedAdapters, TensorSlice], AdapterPlaces],
    shard: TensorSlice,
) -> int:
    """Of all slots and of zeros for the base, each as large as the largest adapter."""
    if fitted is None:
        return 0
    largest = max(map(places(fitted, shard).numbers, fitted.adapters.values()))
    return (fitted.max_loaded + 1) * largest


def _mindformers(config: PlanConfig, job: Mapping[str, Any]) -> CompiledModel:
    from mindbatch.backends.mindformers import families, folder_model, layer_sample

    if config.lora.folders:
        raise ConfigError(families.NOT_ON_ASCEND)
    model = families.describe(job["config"], job["source"], ignore=ignored_keys(config.model))
    choose = layer_sample.layer_sample if config.layers == "sample" else layer_sample.all_layers
    sample = choose(model.arch, job["config"])
    facts = folder_model.facts_of(model, config.parallel.model_parallel)
    stage = CompiledStage(Stage(range(model.arch.num_layers)), facts, sample.layers, sample.counts)
    told = {**job, "network": MINDFORMERS, "config": sample.config}
    return CompiledModel(facts, model.arch.num_layers, (stage,), told)


def _architecture(config: PlanConfig, job: Mapping[str, Any]) -> Architecture:
    ignore = ignored_keys(config.model)
    return describe(job["config"], job["model_type"], job["source"], ignore=ignore)
