"""Fetching models by name: what is asked for, shown and agreed to here; a child process does it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mindbatch.hub import fetch_worker
from mindbatch.hub.cache import FETCHED, HUGGING_FACE, cache_folder, cached_model, fetched
from mindbatch.io.amounts import counted, size
from mindbatch.io.children import Child
from mindbatch.io.errors import MindBatchError
from mindbatch.io.screen_text import printable, say

_MIB = 1 << 20


def fetch_model(
    name: str, revision: str | None, patterns: Iterable[str], *, asks: bool, hub: str = HUGGING_FACE
) -> Path:
    """The folder of a model in the cache, which is fetched unless all of it was fetched before.

    revision: a branch, tag or commit; None is the main branch, as it was when it was first fetched.
    patterns: of files to fetch beside config, tokenizer and safetensors. asks: fetch only if the user agrees.

    Raises:
        MindBatchError: it cannot be fetched, or not by now; what has come by then is kept, and gone on from.
    """
    folder = cached_model(name, revision, hub)
    if folder is not None and fetched(folder) is not None:
        return folder
    wanted = {
        "hub": hub,
        "cache": str(cache_folder(hub)),
        "name": name,
        "revision": revision,
        "files": [*patterns],
        "record": FETCHED,
    }
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    child = Child(
        fetch_worker.main,
        json.dumps(wanted),
        env={**environment, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        stderr=subprocess.DEVNULL,
    )
    try:
        plan = _next_message(child, name)
        sizes: Mapping[str, int] = plan["files"]
        where = f"{printable(plan['hub'])}, commit {printable(plan['commit'])[:12]}"
        what = f"{counted(len(sizes), 'file')}, {size(sum(sizes.values()))}"
        if asks and not _agrees(f"{name} is not here; fetch {what}, from {where}?"):
            raise MindBatchError(f"{name}: not fetched; give a folder, or model.download=true")
        if not asks:
            say(f"fetching {name}: {what}, from {where}")
        child.connection.send_bytes(b"go")
        return Path(_followed(child, name, sum(sizes.values())))
    finally:
        child.end()


def _followed(child: Child, name: str, total: int) -> str:
    """Shows how far the child is until all is there; returns the folder."""
    from rich.console import Console

    from mindbatch.io.moving_bar import MovingBar

    console = Console(stderr=True)
    with MovingBar(f"fetching {name}", console, disable=not console.is_terminal) as bar:
        while "folder" not in (message := _next_message(child, name)):
            bar.set(min(message["bytes"], total) // _MIB, total // _MIB, "MiB")
    return str(message["folder"])


def _next_message(child: Child, name: str) -> dict[str, Any]:
    """The child's next message. Raises MindBatchError where it is a fault, or the child has ended."""
    try:
        message: dict[str, Any] = json.loads(child.connection.recv_bytes())
    except (EOFError, OSError) as error:
        raise MindBatchError(f"{name}: the process that fetches it has ended ({child.death()})") from error
    if "fault" in message:
        raise MindBatchError(f"{name}: {printable(message['fault'])}")
    return message


def _agrees(question: str) -> bool:
    say(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
