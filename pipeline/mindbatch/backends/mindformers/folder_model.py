"""A Hugging Face folder that MindFormers runs: checked as a whole before anything of it is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mindbatch.backends.mindformers.adapter_specs import adapter_specs
from mindbatch.backends.mindformers.division import division_faults
from mindbatch.backends.mindformers.families import (
    NOT_ON_ASCEND,
    PROVIDER,
    Description,
    describe,
    family_of,
)
from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, read_config
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.folders.tensor_match import match_tensors
from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.errors import ConfigError
from mindbatch.interrupts import interruptible
from mindbatch.kernels.choice import compiled
from mindbatch.models import native_model
from mindbatch.models.adapter_names import prefix_renames
from mindbatch.models.adapter_weights import AdapterPlaces, FittedAdapters, fit_adapters, rank_places
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import IgnoredKeys
from mindbatch.models.experts import ExpertNames
from mindbatch.models.folder_tensors import left_out_faults
from mindbatch.models.merged_adapter import MergedAdapter, merge_whole, merged_weights
from mindbatch.models.model_facts import ModelFacts
from mindbatch.models.registry import tensor_specs, tied_tensors, unused_tensors
from mindbatch.models.tensor_spec import source_shapes
from mindbatch.parallel.topology import WHOLE, Stage, TensorSlice

if TYPE_CHECKING:  # MindSpore is imported where a model is loaded
    from mindbatch.kernels.interface import Kernels
    from mindbatch.kernels.shapes import CacheGeometry
    from mindbatch.models.runnable import RunnableModel


@dataclass(frozen=True)
class MindFormersModel:
    """A folder that holds a model of FAMILIES, not yet loaded.

    shard: the rank of it that is loaded. merged: the adapter that becomes part of the weights while they are
    read.
    """

    folder: ModelFolder
    description: Description
    shard: TensorSlice = WHOLE
    merged: MergedAdapter | None = None

    @property
    def facts(self) -> ModelFacts:
        """See `ModelFacts`."""
        return facts_of(self.description, self.shard.size)

    def fit_adapters(
        self, adapters: Mapping[str, LoraAdapter], max_loaded: int | None = None
    ) -> FittedAdapters:
        """See `loading.described.DescribedModel.fit_adapters`."""
        fitted = fit_mindformers(self.description.arch, adapters, max_loaded)
        places = places_of(self.description.arch, fitted, self.shard)
        largest = max(map(places.numbers, fitted.adapters.values()))
        return replace(fitted, slot_numbers=(largest,))

    def merge(self, adapter: LoraAdapter) -> MindFormersModel:
        """See `loading.described.DescribedModel.merge`."""
        arch = self.description.arch
        merged = merge_whole(source_shapes(tensor_specs(arch)), tied_tensors(arch), self.folder, adapter)
        return replace(self, merged=merged)

    def load(
        self,
        kernels: Kernels,
        geometry: CacheGeometry,
        progress: Callable[[int, int], None],
        adapters: FittedAdapters | None = None,
    ) -> RunnableModel:
        """See `loading.described.DescribedModel.load`."""
        if adapters is not None and kernels.device_target == "Ascend":
            raise ConfigError(NOT_ON_ASCEND)
        model, bank = self.description, None
        with interruptible():  # tables are computed, and MindSpore then takes SIGINT for itself
            kernels = compiled(kernels)
            from mindbatch.backends.mindformers.network import assemble, build_network
            from mindbatch.backends.mindformers.weights import load_weights
            from mindbatch.models.adapter_bank import AdapterBank

            network = build_network(model, kernels, self.shard)
        with merged_weights(self.folder, self.merged) as folder:
            load_weights(network, model.arch, folder, kernels, progress)
        if adapters is not None:
            bank = AdapterBank(
                adapters, places_of(model.arch, adapters, self.shard), (self.folder, str), kernels
            )
        return assemble(network, model.arch, kernels, geometry, bank)


def open_folder(
    home: Path, model_type: str, ignore: IgnoredKeys, shard: TensorSlice = WHOLE
) -> MindFormersModel:
    """Reads config.json and the heads of the weights, no more. shard: the rank that is to be loaded.

    Raises:
        CheckpointError: a family that MindFormers does not run, keys or tensors that it does not compute,
            missing or damaged files.
        ConfigError: `model_type` is not that of config.json, or the model cannot be divided so.
    """
    source, config = str(home / CONFIG_NAME), read_config(home)
    family_of(config, source, ignore)  # before the weights: those of others may be of any form
    if model_type not in ("auto", config["model_type"]):
        raise ConfigError(
            f"model.type={model_type}: {source} says model_type={config['model_type']!r}, which alone "
            f"{PROVIDER} goes by; allowed: auto, {config['model_type']}"
        )
    model = describe(config, source, ignore=ignore)
    if faults := [*division_faults(model.arch, shard.size)]:
        raise ConfigError(faults)
    folder = ModelFolder(home)
    try:
        shapes = source_shapes(tensor_specs(model.arch))
        raise_if_any([*match_tensors(shapes, folder, unused_tensors(model.arch)), *_dtype_faults(folder)])
        raise_if_any([*left_out_faults(tied_tensors(model.arch), folder)])
    except BaseException:
        folder.close()
        raise
    return MindFormersModel(folder, model, shard)


def _dtype_faults(folder: ModelFolder) -> Iterator[str]:
    """The router's correction is float32 in every checkpoint; all else is of one type."""
    first: dict[str, str] = {}
    for name in folder.names:
        if not name.endswith(ExpertNames.correction):
            first.setdefault(folder.info(name).dtype, name)
    if len(first) > 1:
        found = ", ".join(f"{dtype} ({shown(name)})" for dtype, name in sorted(first.items()))
        yield f"{folder.path}: tensors of several types: {found}; {PROVIDER} takes weights of one type"


def fit_mindformers(
    arch: Architecture, adapters: Mapping[str, LoraAdapter], max_loaded: int | None = None
) -> FittedAdapters:
    """Checks adapters against a model that MindFormers runs.

    Raises:
        CheckpointError: what does not fit, of all adapters.
    """
    shapes = source_shapes(tensor_specs(arch))
    renames = prefix_renames("model.", shapes)
    return fit_adapters(adapter_specs(arch), adapters, max_loaded, renames, shapes)


def places_of(arch: Architecture, adapters: FittedAdapters, shard: TensorSlice) -> AdapterPlaces:
    """Where a rank computes with adapters."""
    return rank_places(adapter_specs(arch), adapters, shard, Stage(range(arch.num_layers)))


def facts_of(model: Description, model_parallel: int = 1) -> ModelFacts:
    """The sizes of a model; the cache is that of one of its ranks."""
    found = native_model.facts_of(model.arch, model_parallel)
    return replace(
        found,
        max_positions=model.max_positions,
        rank_parameters=(found.num_parameters // model_parallel,),
        head_dim=0 if model.arch.latent is not None else found.head_dim,
        is_gathered=False,
        expert_numbers=0,
    )
