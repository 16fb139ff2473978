"""The paths in a configuration: made definite, and checked before anything is loaded."""

import os
from collections.abc import Callable
from pathlib import Path

from mindbatch.config.paths import near_sibling, resolve_path
from mindbatch.config.schema import GenerateConfig, ModelConfig
from mindbatch.config.settings import shown

STANDARD_INPUT = "-"

NO_MODEL = "model.checkpoint_name_or_path: must be given: the folder of a model (model=tiny_gpt2 is shipped)"


def settle_paths(config: GenerateConfig) -> list[str]:
    """Replaces `shipped:` and ~ in the paths of `config` by what they mean; returns their faults."""
    faults = settle_model_paths(config.model)
    output = config.output
    if config.prompts_file != STANDARD_INPUT:
        config.prompts_file = _settled("prompts_file", config.prompts_file, _input_file_fault, faults)
    output.file = _settled("output.file", output.file, _output_file_fault, faults)
    return faults


def settle_model_paths(model: ModelConfig) -> list[str]:
    """The same for the paths of a model."""
    faults = [] if model.checkpoint_name_or_path is not None else [NO_MODEL]
    model.checkpoint_name_or_path = _settled(
        "model.checkpoint_name_or_path", model.checkpoint_name_or_path, _model_folder_fault, faults
    )
    model.tokenizer = _settled("model.tokenizer", model.tokenizer, _folder_fault, faults)
    return faults


def _settled(
    key: str, text: str | None, fault_of: Callable[[Path], str | None], faults: list[str]
) -> str | None:
    """The path that `text` means; a reason from `fault_of` why it cannot be used is appended to `faults`."""
    if text is None:
        return None
    try:
        path = resolve_path(text)
        fault = fault_of(path)
    except OSError as error:  # no permission, a name that is too long
        path, fault = Path(text), f"cannot be used ({error.strerror})"
    except ValueError as error:  # no such home, a null byte
        path, fault = Path(text), str(error)
    if fault:
        faults.append(f"{key}={shown(text)}: {fault}")
    return str(path)


def _model_folder_fault(path: Path) -> str | None:
    fault = _folder_fault(path)
    if fault is None and not (path / "config.json").is_file():
        return "the folder holds no config.json"
    return fault


def _folder_fault(path: Path) -> str | None:
    if path.is_dir():
        return None
    if path.exists():
        return f"is a file; give the folder that holds it: {path.parent}"
    return f"no such folder (models are not downloaded){near_sibling(path)}"


def _input_file_fault(path: Path) -> str | None:
    if path.is_dir():
        return "is a folder; give a file with a prompt on each line"
    return None if path.exists() else f"no such file{near_sibling(path)}"


def _output_file_fault(path: Path) -> str | None:
    if path.is_dir():
        return "is a folder; give the name of a file in it"
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    return (
        None if os.access(path.parent, os.W_OK | os.X_OK) else f"the folder {path.parent} cannot be written"
    )
