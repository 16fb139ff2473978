"""Guesses what a file or folder of another format is, and says what to do with it."""

import json
import re
import shlex
from contextlib import suppress
from itertools import islice
from pathlib import Path

from mindbatch.io.error_lines import text_override
from mindbatch.io.regular_file import first_bytes

_SIGNATURES = (
    (
        b"version https://git-lfs.github.com/spec/v1",
        "a Git LFS pointer, not the file itself (fetch it with `git lfs pull`)",
    ),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint is one; its name ends in .bin, .pt or .pth)"),
    *((bytes([0x80, number]), "a Python pickle, which is never executed") for number in range(2, 6)),
    (b"GGUF", "a GGUF file"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"<!DOCTYPE", "an HTML page (perhaps of a failed download)"),
    (b"<html", "an HTML page (perhaps of a failed download)"),
)

PYTORCH_SUFFIXES = (".bin", ".pt", ".pth")
PICKLE_SUFFIXES = (*PYTORCH_SUFFIXES, ".pkl")

CONVERSION_HINT = (
    "pickles can run code and are never executed; {needed}; convert those from a safe source with "
    "transformers' model.save_pretrained(NEW_FOLDER, safe_serialization=True) or "
    "safetensors.torch.save_file(state_dict, 'model.safetensors')"
)


GGUF = (
    "is of llama.cpp (GGUF), whose quantised weights are not read; take the folder of the original model, "
    "with config.json and safetensors"
)
ADAPTER = (
    "is a LoRA adapter, not a model; merge it into its base model with `mindbatch reshard source=BASE_MODEL "
    "lora.merge={folder} target.dir=NEW_FOLDER`, or give the base model"
)
MINDFORMERS_YAML = (
    "is a YAML file, as MindFormers has them; a predict YAML is given as model.mindformers_yaml=FILE, and a "
    "model is the folder with its config.json and safetensors"
)
_NAMES_LOOKED_AT = 10_000
_RANKS = (
    "holds rank folders of a checkpoint and no config.json; make a model of them, with the folder of its "
    "config.json and tokenizer: `{command}`"
)
_RANK = re.compile(r"rank_[0-9]+")
ITERATION_TRACKER = "latest_checkpointed_iteration.txt"
"""Of MindFormers' Checkpoint 2.0: the file with the number of the newest whole iteration."""
ITERATION_WEIGHTS = re.compile(r"(?:.+-)?model-(\d{7})-(\d{7})\.safetensors", re.DOTALL)
"""Names of its files of weights: which it is, of how many."""
_PLAIN = re.compile(r"[\w./@+-]+")
_MARKER_BYTES = 100_000_000


def foreign_format(head: bytes) -> str | None:
    """Returns a description of the format whose signature `head` begins with, or None when it is none of
    them."""
    return next((description for magic, description in _SIGNATURES if head.startswith(magic)), None)


def foreign_file(path: Path) -> str | None:
    """Guesses by its name the format of a file that is no model, and a remedy; None if unknown."""
    match path.suffix:
        case ".gguf":
            return GGUF
        case ".yaml" | ".yml":
            return MINDFORMERS_YAML
    return None


def foreign_folder(folder: Path) -> str | None:
    """Recognises a folder without a model that can be read, by the names in it."""
    try:
        names = sorted(entry.name for entry in islice(folder.iterdir(), _NAMES_LOOKED_AT))
    except OSError:
        return None
    trainings = [name for name in names if name.startswith("checkpoint-")]
    if any(name.startswith(("adapter_config.", "adapter_model.")) for name in names):
        return ADAPTER.format(folder=folder)
    if "model_index.json" in names:
        return "is a diffusers pipeline, which makes images"
    if "params.json" in names and any(name.startswith("consolidated.") for name in names):
        return "holds the authors' own format; take the model's Hugging Face folder, with config.json"
    if ITERATION_TRACKER in names or any(map(ITERATION_WEIGHTS.fullmatch, names)):
        return "is MindFormers' Checkpoint 2.0; copy config.json and the tokenizer's files of its model there"
    if {"snapshots", "blobs"} <= {*names}:
        return "is an entry of the hub cache; give the model's name (ORG/NAME), or snapshots/REVISION in it"
    if any(name.endswith(".gguf") for name in names):
        return GGUF
    if trainings:
        return f"is the folder of a training; give one in it, such as {folder / trainings[-1]}"
    if names and all(name.endswith((".yaml", ".yml")) for name in names):
        return MINDFORMERS_YAML
    return None


def ranks_without_config(folder: Path) -> str | None:
    """Describes a folder of rank folders alone, and the command that makes a model of it; None for others."""
    with suppress(OSError):
        if any(_RANK.fullmatch(entry.name) for entry in islice(folder.iterdir(), _NAMES_LOOKED_AT)):
            return _RANKS.format(command=reshard_command(folder))
    return None


def reshard_command(folder: Path) -> str:
    keys = {"source": str(folder)}
    if not (folder / "config.json").is_file():
        above = folder.parent
        keys["source_config"] = str(above) if (above / "config.json").is_file() else "MODEL_FOLDER"
    if strategy := _noted_strategy(folder):
        keys["source_strategy"] = strategy
    keys["target.dir"] = "whole" if not Path("whole").exists() else f"{folder.name}_whole"
    return f"mindbatch reshard {' '.join(_override(key, text) for key, text in keys.items())}"


def _override(key: str, text: str) -> str:
    return f"{key}={text}" if _PLAIN.fullmatch(text) else shlex.quote(text_override(key, text))


def _noted_strategy(folder: Path) -> str | None:
    """Returns the strategy of the ranks that transform_ckpt.py wrote, from its marker."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        noted = json.loads(first_bytes(folder / "reshard.json", _MARKER_BYTES))["settings"]["strategy"]
        return noted if isinstance(noted, str) else None
    return None
