"""Processes that nobody here has started: those below one, and whether they end."""

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")


def wait_for(look: Callable[[], Value], seconds: float = 60.0) -> Value:
    """The first value that counts, of those that come in so many seconds."""
    deadline = time.monotonic() + seconds
    while not (value := look()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
    return value


def is_gone(process: int) -> bool:
    """Whether a process ends; one that is being ended is waited for."""
    try:
        end = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([end], [], [], 60.0)[0])
    finally:
        os.close(end)


def descendants(process: int) -> dict[int, str]:
    """All processes below a process, by id, each with its name in the job: `rank_0`; else empty."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found, below = {}, {process}
    while below:
        below = {child for child, parent in parents.items() if parent in below}
        found |= {child: _name(child) for child in below}
    return found


def _name(process: int) -> str:
    with suppress(OSError):
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        given = dict(variable.partition(b"=")[::2] for variable in variables)
        if b"MINDBATCH_RANK" in given and given.get(b"MS_ROLE") != b"MS_SCHED":
            return f"rank_{int(given[b'MINDBATCH_RANK'])}"
    return ""


def are_gone(processes: set[int], seconds: float) -> bool:
    """Whether they all end in so many seconds."""
    deadline = time.monotonic() + seconds
    while left := {process for process in processes if runs(process)}:
        if time.monotonic() > deadline:
            print(f"left: {left}")
            return False
        time.sleep(0.05)
    return True


def runs(process: int) -> bool:
    """Whether there is such a process that is more than an entry in a table."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
