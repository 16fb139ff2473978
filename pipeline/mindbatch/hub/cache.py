"""Local caches of hubs, as huggingface_hub lays its own out: which models are there, and what was fetched."""

import os
import re
from pathlib import Path
from typing import Any

from mindbatch.io.regular_file import first_bytes

FETCHED = ".mindbatch-fetched.json"
"""In the folder of a snapshot, written when all of it is there: name, revision, commit, hub, digests."""

HUGGING_FACE, MODEL_SCOPE = "huggingface", "modelscope"
_MAIN = {HUGGING_FACE: "main", MODEL_SCOPE: "master"}
_LARGEST_RECORD = 1 << 20
_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_NAME = re.compile(rf"({_PART}/)?{_PART}", re.ASCII)
_REVISION = re.compile(r"[\w.-]{1,128}(/[\w.-]{1,128}){0,3}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{6,64}")


def is_name(text: str) -> bool:
    """True if `text` can only be meant as a model's name on a hub: ORG/NAME, and there is no folder ORG."""
    return "/" in text and _NAME.fullmatch(text) is not None and not Path(text).parent.exists()


def is_revision(text: str) -> bool:
    """True if `text` can be the name of a branch or tag, or a commit."""
    return _REVISION.fullmatch(text) is not None and not {".", ".."} & {*text.split("/")}


def cache_folder(hub: str = HUGGING_FACE) -> Path:
    """Locates the folder of what is fetched from a hub; of Hugging Face's it is that of huggingface_hub."""
    if hub == MODEL_SCOPE:
        return Path(os.environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope").expanduser() / "mindbatch"
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface/hub"


def cached_model(name: str, revision: str | None = None, hub: str = HUGGING_FACE) -> Path | None:
    """The folder of a revision of the model of that name, if the cache holds it; None is the main branch."""
    if not _NAME.fullmatch(name):
        return None
    entry = cache_folder(hub) / f"models--{name.replace('/', '--')}"
    commit = revision or _MAIN[hub]
    if not (_COMMIT.fullmatch(commit) and (entry / "snapshots" / commit).is_dir()):
        try:
            commit = first_bytes(entry / "refs" / commit, 100).decode("ascii", "replace").strip()
        except OSError:
            return None
    snapshot = entry / "snapshots" / commit
    return snapshot if _COMMIT.fullmatch(commit) and snapshot.is_dir() else None


def fetched(folder: Path) -> dict[str, Any] | None:
    """Reads the record of a folder that was fetched; None where it was not, or not to its end."""
    from mindbatch.io.strict_json import JsonFault, StrictReader  # only where a model has a name

    try:
        record = StrictReader(max_depth=8).parse(first_bytes(folder / FETCHED, _LARGEST_RECORD))
    except (OSError, ValueError, JsonFault):
        return None
    return record if isinstance(record, dict) else None


def how_to_get(name: str, hub: str = HUGGING_FACE) -> str:
    """Explains how to get what is neither a folder nor in the cache; empty if it is not like a hub name."""
    if not is_name(name):
        return ""
    client, into = (
        ("hf download", "--local-dir") if hub == HUGGING_FACE else ("modelscope download", "--local_dir")
    )
    return (
        f", nor is it in the hub cache {cache_folder(hub)}; where there is a network: model.download=true, "
        f"or {client} {name} {into} {name.partition('/')[2]}"
    )
