"""Resolves a path given by the user: their own file, shipped data, or a model in the hub's local cache."""

import os
import re
from itertools import islice
from pathlib import Path

from mindbatch.io.fault_lines import did_you_mean
from mindbatch.io.regular_file import first_bytes

SHIPPED = "shipped:"
"""Prefix of a path below the data that travels with MindBatch, wherever that is installed."""

STANDARD_INPUT = "-"
"""In place of the path of a file to read."""

SAVED_BESIDE = ".config.yaml"
"""Suffix that, after the name of a generated file, names its configuration."""

SAVED_CONFIG = "config.yaml"
"""The configuration of a run, in its folder."""

_PACKAGE = Path(__file__).resolve().parents[1]
_SIBLINGS_LOOKED_AT = 10_000

_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_NAME = re.compile(rf"({_PART}/)?{_PART}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{6,64}")


def data_root() -> Path:
    """The folder that holds configs/ and examples/: the package itself in a wheel, else the checkout."""
    return _PACKAGE if (_PACKAGE / "configs").is_dir() else _PACKAGE.parents[1]


def configs_folder() -> Path:
    """The shipped Hydra tree."""
    return data_root() / "configs"


def resolve_path(text: str) -> Path:
    """The path that `text` names: below the shipped data after `shipped:`, else the user's own (~ is home).

    A `shipped:` path that leads out of the shipped data raises ValueError, as does an unknown ~user.
    """
    if not text.startswith(SHIPPED):
        return expand_home(text)
    root = data_root()
    path = (root / text.removeprefix(SHIPPED)).resolve()
    if not path.is_relative_to(root):
        raise ValueError("leads out of the data shipped with MindBatch")
    return path


def expand_home(text: str) -> Path:
    """`text` as a path, with a leading ~ replaced. Raises ValueError when there is no such home."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError("the home folder cannot be found") from error


def near_sibling(path: Path) -> str:
    """`; did you mean PATH?` with a path beside the missing `path` of much the same name, or nothing."""
    try:
        names = [entry.name for entry in islice(path.parent.iterdir(), _SIBLINGS_LOOKED_AT)]
    except OSError:
        return ""
    return did_you_mean(path.name, names, notation=path.with_name)


def near_shipped(text: str) -> str:
    """`; did you mean shipped:TEXT?` where the missing path is one of the shipped examples, or nothing."""
    if not text.startswith("examples/"):
        return ""
    try:
        is_there = resolve_path(SHIPPED + text).exists()
    except (OSError, ValueError):
        return ""
    return f"; did you mean {SHIPPED}{text}?" if is_there else ""


def cached_model(name: str) -> Path | None:
    """The folder of the main revision of the model of that name, if the cache holds it."""
    if not _NAME.fullmatch(name):
        return None
    entry = _cache_folder() / f"models--{name.replace('/', '--')}"
    try:
        commit = first_bytes(entry / "refs/main", 100).decode("ascii", "replace").strip()
    except OSError:
        return None
    snapshot = entry / "snapshots" / commit
    return snapshot if _COMMIT.fullmatch(commit) and snapshot.is_dir() else None


def how_to_get(name: str) -> str:
    """Explains how to get what is neither a folder nor in the cache; empty if it is not like a hub name."""
    if "/" not in name or not _NAME.fullmatch(name) or Path(name).parent.exists():
        return ""
    target = name.partition("/")[2]
    return (
        f", nor is it in the hub cache {_cache_folder()}; where there is a network: "
        f"hf download {name} --local-dir {target} (or huggingface-cli download)"
    )


def _cache_folder() -> Path:
    """Locates the folder in which huggingface_hub keeps what it downloads."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface/hub"
