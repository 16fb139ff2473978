"""The job of `mindbatch plan compile=true`: the spec of a model of either provider, from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindbatch.checkpoint.folders.folder_files import existing_folder
from mindbatch.config.model_schema import ignored_keys
from mindbatch.io.errors import ConfigError
from mindbatch.loading.prepared_adapters import open_adapters
from mindbatch.models import native
from mindbatch.models.adapter_weights import FittedAdapters
from mindbatch.models.architecture import Architecture
from mindbatch.models.described_config import check_division, described_config
from mindbatch.models.model_spec import ModelSpec
from mindbatch.models.no_weights import sampled_layers
from mindbatch.models.registry import tensor_specs
from mindbatch.models.stage_cut import even_in_time
from mindbatch.parallel.topology import RankPart, TensorSlice
from mindbatch.tasks.plan.schema import PlanConfig


@dataclass(frozen=True)
class CompilationJob:
    """Specification of a model's compilation.

    layers: of each stage, those that are compiled.
    counts: how many layers each of them stands for, where only the network that is built tells the bytes of
        a layer; empty where the spec tells them.
    told: the job as the simulation is told of it.
    """

    spec: ModelSpec
    layers: tuple[tuple[int, ...], ...]
    told: Mapping[str, Any]
    adapters: FittedAdapters | None = None
    counts: tuple[int, ...] = ()

    def weights(self, stage: int) -> int:
        """Numbers of the weights of a rank of a stage; 0 where only the network tells."""
        return 0 if self.counts else self.spec.rank_parameters[stage]

    def adapter_numbers(self, stage: int) -> int:
        """Counts numbers in a rank's slots and zeros for the base, each as large as the largest adapter."""
        return (
            0 if self.adapters is None else (self.adapters.max_loaded + 1) * self.adapters.slot_numbers[stage]
        )


def compilation_job(config: PlanConfig) -> CompilationJob:
    """Reads config.json and the adapters and nothing else.

    Raises:
        ConfigError, CheckpointError: the model cannot be described, or cut over the ranks.
    """
    assert config.model.checkpoint_name_or_path is not None
    folder, ignore = existing_folder(config.model.checkpoint_name_or_path), ignored_keys(config.model)
    is_native = config.model.provider == "native"
    described = described_config(folder, config.model.type if is_native else "auto", ignore)
    told = {
        "network": config.model.provider,
        "config": described.content,
        "source": described.source,
        "model_type": config.model.type,
        "ignore": [*ignore.names],
    }
    if config.layout.qkv_concat:
        raise ConfigError("layout.qkv_concat=true: has no effect with compile=true; remove it")
    return _native(config, told, described.architecture) if is_native else _mindformers(config, told)


def _native(config: PlanConfig, told: Mapping[str, Any], arch: Architecture) -> CompilationJob:
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
    return CompilationJob(spec, layers, {**told, "layers": layers, "lora": lora}, adapters)


def _mindformers(config: PlanConfig, told: Mapping[str, Any]) -> CompilationJob:
    from mindbatch.backends.mindformers import families, layer_sample

    if config.lora.folders:
        raise ConfigError(families.NOT_ON_ASCEND)
    shard, ignore = TensorSlice(0, config.parallel.model_parallel), ignored_keys(config.model)
    spec = families.describe(told["config"], told["source"], ignore=ignore, shard=shard)
    choose = layer_sample.layer_sample if config.layers == "sample" else layer_sample.all_layers
    sample = choose(spec.architecture, told["config"])
    told = {**told, "config": sample.config}
    return CompilationJob(spec, (sample.layers,), told, counts=sample.counts)
