"""Models in Hugging Face's local cache, by their names on the hub; nothing is downloaded."""

import os
import re
from pathlib import Path

from mindbatch.regular_file import first_bytes

_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_NAME = re.compile(rf"({_PART}/)?{_PART}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{6,64}")


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
    """How to get what is neither a folder nor in the cache; empty where it is not like a name on the hub."""
    if "/" not in name or not _NAME.fullmatch(name) or Path(name).parent.exists():
        return ""
    target = name.partition("/")[2]
    return (
        f", nor is it in the hub cache {_cache_folder()}; where there is a network: "
        f"hf download {name} --local-dir {target} (or huggingface-cli download)"
    )


def _cache_folder() -> Path:
    """Where huggingface_hub keeps what it downloads."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface/hub"
