"""The model that `mindbatch plan compile=true` compiles, of either provider: described from config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, existing_folder, read_config
from mindbatch.checkpoint.placement.placements import placements
from mindbatch.engine.described import ignored_keys
from mindbatch.errors import ConfigError
from mindbatch.models.model_facts import ModelFacts
from mindbatch.models.native_model import facts_of
from mindbatch.models.no_weights import sampled_layers
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.parallel.topology import TensorSlice
from mindbatch.tasks.plan.schema import PlanConfig


@dataclass(frozen=True)
class CompiledModel:
    """facts: with the cache of one rank. layers: those that are compiled, of num_layers.

    counts: how many layers each of them stands for.
    numbers: of a rank's weights; None where only the network that is built can tell.
    job: what the simulation is told of it.
    """

    facts: ModelFacts
    num_layers: int
    layers: tuple[int, ...]
    counts: tuple[int, ...]
    numbers: Callable[[TensorSlice], int] | None
    job: Mapping[str, Any]


def compiled_model(config: PlanConfig) -> CompiledModel:
    """Reads config.json and nothing else.

    Raises:
        ConfigError, CheckpointError: the model cannot be described, or cut over the ranks.
    """
    assert config.model.checkpoint_name_or_path is not None
    folder = existing_folder(config.model.checkpoint_name_or_path)
    job = {
        "provider": config.model.provider,
        "config": read_config(folder),
        "source": str(folder / CONFIG_NAME),
        "model_type": config.model.type,
        "ignore": [*ignored_keys(config.model).names],
    }
    make = _mindformers if config.model.provider == "mindformers" else _native
    return make(config, job)


def _native(config: PlanConfig, job: Mapping[str, Any]) -> CompiledModel:
    ignore, size = ignored_keys(config.model), config.parallel.model_parallel
    arch = describe(job["config"], job["model_type"], job["source"], ignore=ignore)
    specs = tensor_specs(arch)
    placements(specs, size, 1, keys="parallel.")
    layers = sampled_layers(arch) if config.layers == "sample" else tuple(range(arch.num_layers))

    def numbers(shard: TensorSlice) -> int:
        return sum(spec.local_outputs(shard) * (spec.local_inputs(shard) or 1) for spec in specs)

    facts = facts_of(arch, size)
    return CompiledModel(facts, arch.num_layers, layers, (), numbers, {**job, "layers": layers})


def _mindformers(config: PlanConfig, job: Mapping[str, Any]) -> CompiledModel:
    from mindbatch.backends.mindformers import families, folder_model, layer_sample
    from mindbatch.backends.mindformers.legacy.models import LEGACY_TYPES

    if (model_type := job["config"].get("model_type")) in LEGACY_TYPES:
        raise ConfigError(
            f"compile=true: not for a {model_type} with model.provider=mindformers, a legacy model; allowed: "
            "compile=false, which works out its layout, or model.provider=native"
        )
    model = families.describe(job["config"], job["source"], ignore=ignored_keys(config.model))
    choose = layer_sample.layer_sample if config.layers == "sample" else layer_sample.all_layers
    sample = choose(model, job["config"])
    facts = folder_model.facts_of(model, config.parallel.model_parallel)
    return CompiledModel(
        facts,
        model.num_layers,
        sample.layers,
        sample.counts,
        None,
        {**job, "config": sample.config, "layers": []},
    )
