"""Recognises files and folders that are no model that can be read, and says what to do with them."""

from itertools import islice
from pathlib import Path

from mindbatch.checkpoint.folders.iteration_files import TRACKER, WEIGHTS
from mindbatch.checkpoint.formats.gguf import NOT_TAKEN, POINTER
from mindbatch.checkpoint.formats.registry import FORMATS, format_of

_ADAPTER = (
    "is a LoRA adapter, not a model; merge it into its base model with `mindbatch reshard source=BASE_MODEL "
    "lora.merge={folder} target.dir=NEW_FOLDER`, or give the base model"
)
_YAML_SUFFIXES = (".yaml", ".yml")
_MINDFORMERS_YAML = (
    "is a YAML file, as MindFormers has them; a predict YAML is given as model.mindformers_yaml=FILE, and a "
    "model is the folder with its config.json and safetensors"
)
_MAX_NAMES = 10_000


def foreign_file(path: Path) -> str | None:
    """Recognises by its suffix a file that was given as a model, and says what to do; None for others."""
    if path.suffix in _YAML_SUFFIXES:
        return _MINDFORMERS_YAML
    known = format_of(path)
    return known.refusal if known is not None and not known.is_pickle else None


def foreign_folder(folder: Path) -> str | None:
    """Recognises a folder without a model that can be read, by the names in it."""
    try:
        names = sorted(entry.name for entry in islice(folder.iterdir(), _MAX_NAMES))
    except OSError:
        return None
    if POINTER in names:
        return NOT_TAKEN
    trainings = [name for name in names if name.startswith("checkpoint-")]
    if any(name.startswith(("adapter_config.", "adapter_model.")) for name in names):
        return _ADAPTER.format(folder=folder)
    if "model_index.json" in names:
        return "is a diffusers pipeline, which makes images"
    if "params.json" in names and any(name.startswith("consolidated.") for name in names):
        return "holds the authors' own format; take the model's Hugging Face folder, with config.json"
    if TRACKER in names or any(map(WEIGHTS.fullmatch, names)):
        return "is MindFormers' Checkpoint 2.0; copy config.json and the tokenizer's files of its model there"
    if {"snapshots", "blobs"} <= {*names}:
        return "is an entry of the hub cache; give the model's name (ORG/NAME), or snapshots/REVISION in it"
    refused = (known for known in FORMATS if known.refusal and not known.is_pickle)
    if refusal := next((known.refusal for known in refused if any(map(known.matches, names))), None):
        return refusal
    if trainings:
        return f"is the folder of a training; give one in it, such as {folder / trainings[-1]}"
    if names and all(name.endswith(_YAML_SUFFIXES) for name in names):
        return _MINDFORMERS_YAML
    return None
