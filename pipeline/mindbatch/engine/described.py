"""The model of a folder: opened for its provider, described, and found to hold that model's tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mindbatch.backends.mindformers.families import naming_provider
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, existing_folder, read_config
from mindbatch.checkpoint.folders.model_folder import ModelFolder, is_cut
from mindbatch.checkpoint.placement.placements import check_sizes
from mindbatch.config.model_schema import ModelConfig
from mindbatch.errors import CheckpointError
from mindbatch.models.config_reader import IgnoredKeys
from mindbatch.models.folder_tensors import check_tensors
from mindbatch.models.model_facts import ModelFacts
from mindbatch.models.native_model import NativeModel
from mindbatch.models.registry import chosen_type, describe, tensor_specs
from mindbatch.models.tensor_spec import shard_specs
from mindbatch.parallel.topology import WHOLE, TensorSlice

if TYPE_CHECKING:  # MindSpore is imported where a model is loaded
    from mindbatch.kernels.interface import CacheGeometry, Kernels
    from mindbatch.models.runnable import RunnableModel


class DescribedModel(Protocol):
    """A model folder that was found in order, whoever runs it; its weights are not read yet."""

    @property
    def folder(self) -> ModelFolder: ...

    @property
    def facts(self) -> ModelFacts: ...

    def load(
        self, kernels: Kernels, geometry: CacheGeometry, progress: Callable[[int, int], None]
    ) -> RunnableModel:
        """Reads the weights; `progress` is called with (tensors done, tensors in all).

        Raises:
            CheckpointError: a tensor that is damaged or does not fit.
            ConfigError: the model cannot be run on this device.
        """
        ...


def ignored_keys(model: ModelConfig) -> IgnoredKeys:
    """The keys of config.json to pass over; with an assistant, each is one of its file or of the model's."""
    return IgnoredKeys(tuple(model.ignore_config_keys), may_lack=model.assistant is not None)


def open_model(model: ModelConfig, shard: TensorSlice = WHOLE) -> DescribedModel:
    """Reads config.json and the heads of the weights, no more.

    shard: the rank that is to be loaded: out of a whole folder, or its own of the rank folders that
        `mindbatch reshard` made.

    Raises:
        CheckpointError: the folder does not hold a model that the provider runs, or not all of it, or more.
        ConfigError: there is no such folder, `model.type` contradicts its config.json, or the model cannot
            be cut so.
    """
    return _open(model, model.checkpoint_name_or_path, model.type, shard)


def open_assistant(model: ModelConfig, shard: TensorSlice = WHOLE) -> DescribedModel:
    """The same of `model.assistant`, whose type is in its config.json."""
    return _open(model, model.assistant, "auto", shard)


def _open(model: ModelConfig, path: str | None, model_type: str, shard: TensorSlice) -> DescribedModel:
    home, ignore = existing_folder(path or ""), ignored_keys(model)
    if model.provider == "mindformers":
        from mindbatch.backends.mindformers.folder_model import open_folder

        return open_folder(home, model_type, ignore, shard)
    return _open_native(home, model_type, ignore, shard)


def _open_native(home: Path, model_type: str, ignore: IgnoredKeys, shard: TensorSlice) -> NativeModel:
    source, config = str(home / CONFIG_NAME), None
    with suppress(CheckpointError):  # ModelFolder says it, with what is wrong with the weights
        config = read_config(home)
    if (
        config is not None and "model_type" in config
    ):  # before the weights: those of a model that is not run may be of any form
        with naming_provider(config, ignore):
            chosen_type(config, model_type, source, ignore=ignore)
        check_sizes(
            tensor_specs(describe(config, model_type, source, ignore=ignore)), shard.size, keys="parallel."
        )
    folder = ModelFolder(home, shard if shard != WHOLE and is_cut(home) else None)
    arch = describe(folder.config, model_type, source, ignore=ignore)
    specs = tensor_specs(arch)
    check_tensors(arch, specs if folder.shard == WHOLE else shard_specs(specs, shard), folder)
    return NativeModel(folder, arch, shard)
