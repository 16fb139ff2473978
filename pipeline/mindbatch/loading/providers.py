"""Providers that compute models; a model's folder is opened, declared and checked by its provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mindbatch.checkpoint.folders.folder_files import existing_folder
from mindbatch.checkpoint.folders.model_folder import ModelFolder, StoredWeights
from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.config.model_schema import ModelConfig, ignored_keys
from mindbatch.io.errors import ConfigError
from mindbatch.models import native
from mindbatch.models.adapter_weights import FittedAdapters
from mindbatch.models.config_reader import IgnoredKeys
from mindbatch.models.merged_adapter import MergedAdapter
from mindbatch.models.model_spec import ModelSpec
from mindbatch.parallel.topology import WHOLE, WHOLE_MODEL, RankPart, TensorSlice

if TYPE_CHECKING:  # MindSpore is imported where a model is loaded
    from mindbatch.kernels.interface import Kernels
    from mindbatch.kernels.shapes import CacheGeometry
    from mindbatch.models.model import Model


class Provider(Protocol):
    """Opens the folders of models and loads them: `models.native`, `backends.mindformers.provider`."""

    def open_folder(
        self, home: Path, model_type: str, ignore: IgnoredKeys, part: RankPart
    ) -> tuple[ModelFolder, ModelSpec]:
        """Reads config.json and the heads of the weights, no more.

        part: what is to be loaded: out of a whole folder, or of rank folders that `mindbatch reshard` made.

        Raises:
            CheckpointError: the folder does not hold a model that the provider runs, or not all of it, or
                more.
            ConfigError: `model_type` contradicts its config.json, or the model cannot be divided so.
        """
        ...

    def fit_adapters(
        self, spec: ModelSpec, adapters: Mapping[str, LoraAdapter], max_loaded: int | None = None
    ) -> FittedAdapters:
        """Checks adapters against the whole model. max_loaded: in memory at a time; None for all.

        Raises:
            CheckpointError: what does not fit, of all adapters.
        """
        ...

    def merge(self, spec: ModelSpec, folder: ModelFolder, adapter: LoraAdapter) -> MergedAdapter:
        """Plans the merge of an adapter into the weights while they are read.

        Raises:
            CheckpointError: it does not fit the whole model, or cannot be merged.
            ConfigError: the folder has it already.
        """
        ...

    def load(
        self,
        spec: ModelSpec,
        weights: StoredWeights,
        kernels: Kernels,
        geometry: CacheGeometry,
        progress: Callable[[int, int], None] | None = None,
        adapters: FittedAdapters | None = None,
    ) -> Model:
        """Reads the weights of the spec's rank; `progress` is called with (tensors done, tensors in all).

        adapters: that tokens may be computed with, each once it is loaded.

        Raises:
            CheckpointError: a tensor that is damaged or does not fit.
            ConfigError: the model cannot be run on this device.
        """
        ...


class OpenedFolder(NamedTuple):
    """A folder, and the model that it was found to hold; the weights are not read yet."""

    folder: ModelFolder
    spec: ModelSpec


def provider_of(model: ModelConfig) -> Provider:
    if model.provider == "mindformers":
        from mindbatch.backends.mindformers import provider

        return provider
    return native


def open_model(model: ModelConfig, part: RankPart = WHOLE_MODEL) -> OpenedFolder:
    """Opens the model's folder with its provider. ConfigError also where there is no such folder."""
    return _open(model, model.checkpoint_name_or_path, model.type, part)


def open_assistant(model: ModelConfig, shard: TensorSlice = WHOLE) -> OpenedFolder:
    """Opens `model.assistant`, whose type is in its config.json and whose layers are never divided."""
    try:
        return _open(model, model.assistant, "auto", RankPart(shard))
    except ConfigError as error:
        raise ConfigError(f"model.assistant={model.assistant}: {fault}" for fault in error.faults) from error


def _open(model: ModelConfig, path: str | None, model_type: str, part: RankPart) -> OpenedFolder:
    home = existing_folder(path or "")
    return OpenedFolder(*provider_of(model).open_folder(home, model_type, ignored_keys(model), part))
