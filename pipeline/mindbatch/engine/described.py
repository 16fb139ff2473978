"""The model of a folder: opened, described, and found to hold that model's tensors."""

from __future__ import annotations

from mindbatch.checkpoint.folders.model_config import CONFIG_NAME
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.layers.architecture import Architecture
from mindbatch.models.folder_tensors import check_tensors
from mindbatch.models.registry import describe, tensor_specs


def open_model(path: str | None, model_type: str = "auto") -> tuple[ModelFolder, Architecture]:
    """Reads config.json and the heads of the weights, no more.

    Raises:
        CheckpointError: the folder does not hold a model that is understood, or not all of it, or more.
        ConfigError: there is no such folder, or `model_type` contradicts its config.json.
    """
    folder = ModelFolder(path or "")
    arch = describe(folder.config, model_type, str(folder.path / CONFIG_NAME))
    check_tensors(arch, tensor_specs(arch), folder)
    return folder, arch
