"""A folder with MindFormers' names that it runs as a legacy model: checked before anything is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindbatch.backends.llama_options import SEQUENCE_LENGTH
from mindbatch.backends.mindformers.families import PROVIDER
from mindbatch.backends.mindformers.legacy.models import generation_options
from mindbatch.checkpoint.faults import raise_if_any
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, read_config
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.folders.rank_folders import rank_folders
from mindbatch.checkpoint.folders.reshard_marker import noted_settings
from mindbatch.checkpoint.folders.tensor_match import match_tensors
from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.checkpoint.names.dialect import Options
from mindbatch.checkpoint.names.registry import (
    detected_options,
    dialect,
    has_mindformers_names,
    heads_of,
)
from mindbatch.checkpoint.names.renamed_files import as_mindformers
from mindbatch.checkpoint.placement.placements import placements
from mindbatch.errors import CheckpointError, ConfigError
from mindbatch.interrupts import interruptible
from mindbatch.kernels.choice import compiled
from mindbatch.models.adapter_weights import FittedAdapters
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import IgnoredKeys
from mindbatch.models.model_facts import ModelFacts
from mindbatch.models.native_model import facts_of
from mindbatch.models.registry import MODEL_TYPES, describe, tensor_specs, unused_tensors
from mindbatch.parallel.topology import WHOLE, TensorSlice

if TYPE_CHECKING:  # MindSpore is imported where a model is loaded
    from mindspore import nn

    from mindbatch.kernels.interface import Kernels
    from mindbatch.kernels.shapes import CacheGeometry
    from mindbatch.models.runnable import RunnableModel

NAMES = "mindformers"
NO_ADAPTERS = (
    f"lora.adapters: not with a legacy model of {PROVIDER}, whose files MindSpore reads; allowed: none (a "
    "folder of `mindbatch reshard target.names=mindformers lora.merge=` has one), or model.provider=native"
)


@dataclass(frozen=True)
class LegacyModel:
    """One rank of a model of LEGACY_TYPES, not yet loaded. options: of `generation_options`."""

    folder: ModelFolder
    architecture: Architecture
    options: dict[str, Any]

    @property
    def facts(self) -> ModelFacts:
        """See `ModelFacts`."""
        return replace(facts_of(self.architecture, self.folder.shard.size), devices=("Ascend",))

    def fit_adapters(
        self, adapters: Mapping[str, LoraAdapter], max_loaded: int | None = None
    ) -> FittedAdapters:
        """See `engine.described.DescribedModel.fit_adapters`; not of this provider."""
        raise ConfigError(NO_ADAPTERS)

    def merge(self, adapter: LoraAdapter) -> LegacyModel:
        """See `engine.described.DescribedModel.merge`; MindSpore reads the files of these models."""
        raise ConfigError(NO_ADAPTERS)

    def load(
        self,
        kernels: Kernels,
        geometry: CacheGeometry,
        progress: Callable[[int, int], None],
        adapters: FittedAdapters | None = None,
    ) -> RunnableModel:
        """See `engine.described.DescribedModel.load`. With several ranks, `join_group` has been called."""
        with interruptible():  # MindSpore is loaded
            kernels = compiled(kernels)
            from mindbatch.backends.mindformers.legacy.weights import load_rank

        shard = self.folder.shard
        network = built_network(self.architecture.model_type, self.options, shard, geometry, kernels)
        load_rank(network, self.folder, kernels.float_type, progress)
        return assembled(network, self.architecture, shard, kernels, geometry)


def built_network(
    model_type: str,
    options: Mapping[str, Any],
    shard: TensorSlice,
    geometry: CacheGeometry,
    kernels: Kernels,
) -> nn.Cell:
    """A rank's network with its cache, without memory for its weights. options: of `generation_options`."""
    from mindbatch.backends.mindformers.legacy import network as legacy

    legacy.enter_parallel_mode(shard)
    parallel = legacy.ParallelSizes(model_parallel=shard.size)
    cache = legacy.CacheSizes(geometry.num_blocks + 1, geometry.block_size)  # one more: of padding
    with interruptible():  # tables are computed, and MindSpore then takes SIGINT for itself
        network = legacy.legacy_network(model_type, options, parallel, cache, kernels.float_type.name)
        if shard != WHOLE:
            legacy.infer_layout(network, options["batch_size"], SEQUENCE_LENGTH)
    return network


def assembled(
    network: nn.Cell, arch: Architecture, shard: TensorSlice, kernels: Kernels, geometry: CacheGeometry
) -> RunnableModel:
    """The step of a network of `built_network` whose weights are there."""
    from mindbatch.backends.mindformers.legacy.step import assemble
    from mindbatch.layers.attention import attention_shape

    return assemble(network, attention_shape(arch, 0, shard), kernels, geometry, shard.size)


def open_legacy(home: Path, model_type: str, ignore: IgnoredKeys, shard: TensorSlice = WHOLE) -> LegacyModel:
    """Reads config.json and the heads of the rank's files, no more: of a rank folder, or of a whole folder.

    Raises:
        CheckpointError: keys that MindFormers' network does not compute, or tensors that are not those of
            this model, with MindFormers' names, for so many ranks.
        ConfigError: what its network does not have, or `model_type` contradicts config.json.
    """
    source, config = str(home / CONFIG_NAME), read_config(home)
    arch = describe(config, model_type, source, to_be_run=False, ignore=ignore)
    is_cut = shard != WHOLE or bool(rank_folders(home))
    folder = ModelFolder(home, shard, names=NAMES) if is_cut else ModelFolder(home)
    try:
        if not has_mindformers_names(arch.model_type, folder.names):
            command = f"`mindbatch reshard source={home} target.names={NAMES} target.dir=...`"
            native = "; model.provider=native runs this folder" if arch.model_type in MODEL_TYPES else ""
            raise CheckpointError(
                f"{home}: has Hugging Face's names; {PROVIDER} runs a {arch.model_type} as a legacy model, "
                f"from what {command} makes{native}"
            )
        return LegacyModel(folder, arch, _options(folder, arch))
    except BaseException:
        folder.close()
        raise


def _options(folder: ModelFolder, arch: Architecture) -> dict[str, Any]:
    """The network's options; its tensors are found to be those of the file."""
    options = detected_options(arch.model_type, folder.names, Options(num_layers=arch.num_layers))
    size = folder.shard.size
    if options.qkv_concat and noted_settings(folder.path).get("qkv_grouped") is False:
        raise CheckpointError(
            f"{folder.path}: fused tensors are joined on each rank (target.qkv_grouped=false), as before "
            "MindFormers 1.9; needed is target.qkv_grouped=true"
        )
    found = generation_options(arch, folder.config, size, qkv_concat=options.qkv_concat)
    placed = placements(tensor_specs(arch), size)
    expected = as_mindformers(dialect(arch.model_type, options), heads_of(arch), placed, size)
    shapes = expected.stored_shapes(folder.shard.rank)
    raise_if_any(match_tensors(shapes, folder, unused_tensors(arch)))
    return found
