"""The model of a folder: opened for its provider, described, and found to hold that model's tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mindbatch.backends.mindformers.division import stages_fault
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, existing_folder, read_config
from mindbatch.checkpoint.folders.model_folder import ModelFolder, is_cut
from mindbatch.checkpoint.folders.reshard_marker import noted_settings
from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.config.model_schema import ModelConfig, ignored_keys
from mindbatch.errors import CheckpointError, ConfigError
from mindbatch.foreign_formats import reshard_command
from mindbatch.models.adapter_weights import FittedAdapters
from mindbatch.models.config_reader import IgnoredKeys
from mindbatch.models.division import check_division
from mindbatch.models.folder_tensors import as_stored, check_tensors
from mindbatch.models.model_facts import ModelFacts
from mindbatch.models.native_model import NativeModel
from mindbatch.models.quantisation import open_whole
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.models.stage_cut import cut, even_in_time, stage_specs
from mindbatch.models.tensor_spec import shard_specs
from mindbatch.parallel.topology import WHOLE, WHOLE_MODEL, ModelPart, TensorSlice

if TYPE_CHECKING:  # MindSpore is imported where a model is loaded
    from mindbatch.kernels.interface import Kernels
    from mindbatch.kernels.shapes import CacheGeometry
    from mindbatch.models.runnable import RunnableModel


class DescribedModel(Protocol):
    """A model folder that was found in order, whoever runs it; its weights are not read yet."""

    @property
    def folder(self) -> ModelFolder: ...

    @property
    def facts(self) -> ModelFacts: ...

    def fit_adapters(
        self, adapters: Mapping[str, LoraAdapter], max_loaded: int | None = None
    ) -> FittedAdapters:
        """Checks adapters against the whole model. max_loaded: in memory at a time; None for all.

        Raises:
            CheckpointError: what does not fit, of all adapters.
            ConfigError: the provider runs no such model with adapters.
        """
        ...

    def merge(self, adapter: LoraAdapter) -> DescribedModel:
        """The model whose weights have the adapter merged into them when they are read.

        Raises:
            CheckpointError: it does not fit the whole model, or cannot be merged.
            ConfigError: the folder has it already, or the provider reads the weights itself.
        """
        ...

    def load(
        self,
        kernels: Kernels,
        geometry: CacheGeometry,
        progress: Callable[[int, int], None],
        adapters: FittedAdapters | None = None,
    ) -> RunnableModel:
        """Reads the weights; `progress` is called with (tensors done, tensors in all).

        adapters: that tokens may be computed with, each once it is loaded.

        Raises:
            CheckpointError: a tensor that is damaged or does not fit.
            ConfigError: the model cannot be run on this device.
        """
        ...


def open_model(model: ModelConfig, part: ModelPart = WHOLE_MODEL) -> DescribedModel:
    """Reads config.json and the heads of the weights, no more.

    part: what is to be loaded: out of a whole folder, or of the rank folders that `mindbatch reshard` made.

    Raises:
        CheckpointError: the folder does not hold a model that the provider runs, or not all of it, or more.
        ConfigError: there is no such folder, `model.type` contradicts its config.json, or the model cannot
            be cut so.
    """
    return _open(model, model.checkpoint_name_or_path, model.type, part)


def open_assistant(model: ModelConfig, shard: TensorSlice = WHOLE) -> DescribedModel:
    """The same of `model.assistant`, whose type is in its config.json and whose layers are never divided."""
    try:
        return _open(model, model.assistant, "auto", ModelPart(shard))
    except ConfigError as error:
        raise ConfigError(f"model.assistant={model.assistant}: {fault}" for fault in error.faults) from error


def _open(model: ModelConfig, path: str | None, model_type: str, part: ModelPart) -> DescribedModel:
    home, ignore = existing_folder(path or ""), ignored_keys(model)
    if model.provider == "mindformers":
        from mindbatch.backends.mindformers.folder_model import open_folder

        if part.stages > 1:
            raise ConfigError(stages_fault(part.stages))
        return open_folder(home, model_type, ignore, part.shard)
    return _open_native(home, model_type, ignore, part)


def _open_native(home: Path, model_type: str, ignore: IgnoredKeys, part: ModelPart) -> NativeModel:
    source, config, arch = str(home / CONFIG_NAME), None, None
    with suppress(CheckpointError):  # ModelFolder says it, with what is wrong with the weights
        config = read_config(home)
    # Before the weights: those of a model that is not run may be of any form.
    if config is not None and "model_type" in config:
        arch = describe(config, model_type, source, ignore=ignore)
        check_division(arch, part.shard.size, part.stages, part.device_map)
    folder = _native_folder(home, part, config or {}, ignore)
    if arch is None or folder.config != config:
        arch = describe(folder.config, model_type, source, ignore=ignore)
    arch = as_stored(arch, folder)
    check_division(arch, part.shard.size, part.stages, part.device_map)
    specs = tensor_specs(arch)
    whole = folder.stages == 1 and part.device_map is None
    stages = cut(specs, part.stages, even_in_time(specs, part.stages) if whole else part.device_map)
    held = stage_specs(specs, stages[part.stage]) if folder.stages > 1 else specs
    with _naming_reshard(folder):
        check_tensors(arch, held if folder.shard == WHOLE else shard_specs(held, part.shard), folder)
    return NativeModel(folder, arch, part.shard, stages[part.stage], tuple(stages))


@contextmanager
def _naming_reshard(folder: ModelFolder) -> Iterator[None]:
    """Adds to a CheckpointError over rank folders of another tool what makes a model of them."""
    try:
        yield
    except CheckpointError as error:
        if folder.shard == WHOLE or "model_parallel" in noted_settings(folder.path):
            raise
        raise CheckpointError(
            f"{folder.path}: rank folders that another tool has cut ({error.faults[0]}); make one model of "
            f"them: `{reshard_command(folder.path)}`"
        ) from error


def _native_folder(
    home: Path, part: ModelPart, config: Mapping[str, Any], ignore: IgnoredKeys
) -> ModelFolder:
    """A whole folder, or the rank's of those that were cut for such ranks."""
    if not is_cut(home):
        return open_whole(home, config, str(home / CONFIG_NAME), ignore.names)
    if part.stages > 1 and part.device_map is not None:
        value = part.device_map if isinstance(part.device_map, str) else [*part.device_map]
        raise ConfigError(
            f"parallel.device_map={value}: {home} was cut into even stages before; remove it, or give the "
            "folder of the whole model"
        )
    return ModelFolder(home, part.shard, stage=part.stage, stages=part.stages)
