"""Models by their name on a hub: found in its local cache, as huggingface_hub lays it out, or fetched.

The user is shown what would be fetched, and agrees to it, here; a child process fetches it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mindbatch.io.amounts import counted, size
from mindbatch.io.errors import ConfigError
from mindbatch.io.regular_file import first_bytes
from mindbatch.io.screen_text import printable, say

FETCHED = ".mindbatch-fetched.json"
"""In the folder of a snapshot, written last: name, revision, commit, hub, digests."""

HUGGING_FACE, MODEL_SCOPE = "huggingface", "modelscope"
_MAIN = {HUGGING_FACE: "main", MODEL_SCOPE: "master"}
_LARGEST_RECORD = 1 << 20
_LISTING_SECONDS = 120.0
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
    """Locates the cache of a hub; Hugging Face's is that of huggingface_hub."""
    if hub == MODEL_SCOPE:
        return Path(os.environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope").expanduser() / "mindbatch"
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface/hub"


def cached_model(name: str, revision: str | None = None, hub: str = HUGGING_FACE) -> Path | None:
    """Finds the folder of a model's revision, None for the main branch, if the cache holds it."""
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
    """Reads the record of a folder that was fetched; None if it was not, or not completely."""
    from mindbatch.io.strict_json import JsonError, StrictReader  # only where a model has a name

    try:
        record = StrictReader(max_depth=8).parse(first_bytes(folder / FETCHED, _LARGEST_RECORD))
    except (OSError, ValueError, JsonError):
        return None
    return record if isinstance(record, dict) else None


def fetch_hint(name: str, hub: str = HUGGING_FACE, *, is_fetched: bool = False) -> str:
    """Explains how to get what is neither a folder nor in the cache; empty if it is not like a hub name.

    is_fetched: model.download=true fetches it.
    """
    if not is_name(name):
        return ""
    client, into = (
        ("hf download", "--local-dir") if hub == HUGGING_FACE else ("modelscope download", "--local_dir")
    )
    fetches = "model.download=true, or " if is_fetched else ""
    command = f"{client} {name} {into} {name.partition('/')[2]}"
    return f", nor is it in the hub cache {cache_folder(hub)}; where there is a network: {fetches}{command}"


def fetch_model(
    name: str, revision: str | None, patterns: Iterable[str], *, asks: bool, hub: str = HUGGING_FACE
) -> Path:
    """Finds the folder of a model in the cache, and fetches what is missing of it.

    revision: a branch, tag or commit; None is the main branch, as it was when it was first fetched.
    patterns: of files to fetch beside config, tokenizer and safetensors. asks: fetch only if the user agrees.

    Raises:
        ConfigError: the user does not want it to be fetched, or the hub has no such model for them.
        MindBatchError: it cannot be fetched, or not by now; what has come by then is kept, and gone on from.
    """
    folder = cached_model(name, revision, hub)
    if folder is not None and fetched(folder) is not None:
        return folder
    from mindbatch.hub import fetch_worker  # few commands fetch
    from mindbatch.hub.network_child import NetworkChild

    wanted = {
        "hub": hub,
        "cache": str(cache_folder(hub)),
        "name": name,
        "revision": revision,
        "files": [*patterns],
        "record": FETCHED,
        "seconds": _LISTING_SECONDS,
    }
    with NetworkChild(fetch_worker.main, wanted, name) as child:
        plan = child.message()
        sizes: Mapping[str, int] = plan["files"]
        where = f"{printable(plan['hub'])}, commit {printable(plan['commit'])[:12]}"
        amount = f"{counted(len(sizes), 'file')}, {size(sum(sizes.values()))}"
        if asks and not _agrees(f"{name} is not here; fetch {amount}, from {where}?"):
            raise ConfigError(f"{name}: not fetched; give a folder, or model.download=true")
        if not asks:
            say(f"fetching {name}: {amount}, from {where}")
        child.go_on()
        return Path(child.followed(sum(sizes.values()))["folder"])


def _agrees(question: str) -> bool:
    say(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
