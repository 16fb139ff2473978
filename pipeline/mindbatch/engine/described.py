"""The model of a folder: opened, described, and found to hold that model's tensors."""

from __future__ import annotations

from contextlib import suppress

from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, existing_folder, read_config
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.config.model_schema import ModelConfig
from mindbatch.errors import CheckpointError
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import IgnoredKeys
from mindbatch.models.folder_tensors import check_tensors
from mindbatch.models.registry import chosen_type, describe, tensor_specs


def ignored_keys(model: ModelConfig) -> IgnoredKeys:
    """The keys of config.json to pass over; with an assistant, each is one of its file or of the model's."""
    return IgnoredKeys(tuple(model.ignore_config_keys), may_lack=model.assistant is not None)


def open_model(model: ModelConfig) -> tuple[ModelFolder, Architecture]:
    """Reads config.json and the heads of the weights, no more.

    Raises:
        CheckpointError: the folder does not hold a model that is understood, or not all of it, or more.
        ConfigError: there is no such folder, or `model.type` contradicts its config.json.
    """
    return _open(model.checkpoint_name_or_path, model.type, ignored_keys(model))


def open_assistant(model: ModelConfig) -> tuple[ModelFolder, Architecture]:
    """The same of `model.assistant`, whose type is in its config.json."""
    return _open(model.assistant, "auto", ignored_keys(model))


def _open(path: str | None, model_type: str, ignore: IgnoredKeys) -> tuple[ModelFolder, Architecture]:
    home = existing_folder(path or "")
    source, config = str(home / CONFIG_NAME), None
    with suppress(CheckpointError):  # ModelFolder says it, with what is wrong with the weights
        config = read_config(home)
    if (
        config is not None and "model_type" in config
    ):  # before the weights: those of a model that is not run may be of any form
        chosen_type(config, model_type, source, ignore=ignore)
    folder = ModelFolder(home)
    arch = describe(folder.config, model_type, source, ignore=ignore)
    check_tensors(arch, tensor_specs(arch), folder)
    return folder, arch
