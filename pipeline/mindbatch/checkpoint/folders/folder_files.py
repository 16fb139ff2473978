"""Opens files of a model folder, if they are regular ones of it or of its Hugging Face cache; its config."""

import os
from itertools import islice
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.error_lines import collecting, first_lines, raise_if_any
from mindbatch.checkpoint.formats.ckpt import CKPT
from mindbatch.checkpoint.formats.registry import format_of
from mindbatch.checkpoint.formats.unread import CONVERSION_HINT, PICKLE
from mindbatch.checkpoint.json_object import read_json_object
from mindbatch.io.error_lines import nearest, shown
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.io.regular_file import first_bytes

_MAX_SIBLINGS = 10_000


def existing_folder(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a folder. ConfigError, with the nearest existing name, for anything else."""
    text = os.fspath(path)
    if not text or "\0" in text:
        raise ConfigError(f"{text!a}: not a path; must be a model folder")
    folder = Path(text)
    if os.path.isdir(folder):
        return folder
    if os.path.lexists(folder):
        kind = "a file" if os.path.isfile(folder) else "not a folder"
        raise ConfigError(f"{folder}: {kind}; must be a model folder, perhaps {folder.parent}")
    near = _nearest_folder(folder)
    hint = (
        f"did you mean {near}?" if near else "nothing is downloaded: give a local Hugging Face model folder"
    )
    raise ConfigError(f"{folder}: no such folder; {hint}")


def _nearest_folder(path: Path) -> Path | None:
    """The existing folder most like the first part of `path` that does not exist."""
    missing = next((part for part in (path, *path.parents) if os.path.isdir(part.parent)), None)
    if missing is None:
        return None
    try:
        with os.scandir(missing.parent) as entries:
            names = [entry.name for entry in islice(entries, _MAX_SIBLINGS) if entry.is_dir()]
    except OSError:
        return None
    near = nearest(missing.name, names)
    return missing.parent / near if near else None


def file_names(folder: Path) -> list[str]:
    """The names in the folder, sorted. CheckpointError when it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be listed ({error.strerror})") from error


def has_file(folder: Path, name: str) -> bool:
    """True if the folder has an entry of that name; also a broken link, which is refused and not ignored."""
    return os.path.lexists(folder / name)


def file_in(folder: Path, name: str) -> Path:
    """`folder/name` when that is a regular file and no symbolic link leads outside; else CheckpointError.

    The Hugging Face cache keeps `REPO/snapshots/REVISION/name -> ../../blobs/HASH`; links into the blobs of
    the same repository are followed, all other links out of the folder are not.
    """
    path = folder / name
    if not os.path.lexists(path):
        raise CheckpointError(f"{path}: missing")
    home, target = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    if not (target.is_relative_to(home) or _is_cache_blob(home, target)):
        raise CheckpointError(f"{path}: symbolic link to {target}; must stay inside the model folder")
    if not target.is_file():
        kind = "a broken symbolic link" if path.is_symlink() else "not a regular file"
        raise CheckpointError(f"{path}: {kind}; must be a regular file")
    return path


def _is_cache_blob(home: Path, target: Path) -> bool:
    return home.parent.name == "snapshots" and target.parent == home.parent.parent / "blobs"


def nothing_readable(folder: Path, problem: str, needed: str, foreign: str | None = None) -> str:
    """Words the error of a folder that lacks what is needed; names what it has instead.

    foreign: description of the folder by `foreign_folder`, if there is one.
    """
    names = file_names(folder)
    pickles = {name: None for name in names if PICKLE.matches(name) or _is_pickled_ckpt(folder / name)}
    if foreign and not pickles:
        return f"{folder}: {foreign}"
    others = [name for name in names if name not in pickles and (format_of(name) or name.startswith("rank_"))]
    listed = ", ".join(first_lines(others or [*pickles], str, limit=3, noun="files"))
    if pickles and not others:
        return f"{folder}: only {listed}; {CONVERSION_HINT.format(needed=needed)}"
    return f"{folder}: {problem}{f', only {listed}' if others else ''}; {needed}"


def _is_pickled_ckpt(path: Path) -> bool:
    """True if a .ckpt cannot be MindSpore's: PyTorch's pickles have that suffix, too."""
    try:
        return CKPT.matches(path.name) and first_bytes(path, 1) != b"\n"  # protobuf's tag of the first field
    except OSError:
        return True


CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
CONFIG_FILES = (CONFIG_NAME, GENERATION_CONFIG_NAME)
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "ice_text.model",
    "vocab.model",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.txt",
    "sentencepiece.bpe.model",
)
"""Files that a tokenizer is made of. Fingerprints of runs digest them in this order: new ones come last."""
_MAX_BYTES = 4 << 20


def read_config(folder: Path) -> dict[str, Any]:
    """Reads config.json. CheckpointError when it is missing or not strict JSON, or its type is no text."""
    config = _read(folder, CONFIG_NAME)
    if not isinstance(config.get("model_type"), str | None):
        raise CheckpointError(
            f"{folder / CONFIG_NAME}: model_type={shown(config['model_type'])}: must be a text"
        )
    return config


def read_configs(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """config.json, and generation_config.json or None where that is absent.

    CheckpointError lists the errors of both.
    """
    errors: list[str] = []
    config: dict[str, Any] = {}
    generation: dict[str, Any] | None = None
    with collecting(errors):
        config = read_config(folder)
    if has_file(folder, GENERATION_CONFIG_NAME):
        with collecting(errors):
            generation = _read(folder, GENERATION_CONFIG_NAME)
    raise_if_any(errors)
    return config, generation


def _read(folder: Path, name: str) -> dict[str, Any]:
    return read_json_object(file_in(folder, name), _MAX_BYTES)
