"""Processors: how many this process may use, and whether threads are too many for them."""

import os
from collections.abc import Iterator
from pathlib import Path

from mindbatch.config.memory import CONTROL_GROUPS, OWN_GROUPS, control_groups, lines


def usable_cores() -> int:
    """Cores that this process may use at a time: of those it is bound to, as many as it is granted."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(bound, granted_cores() or bound)


def granted_cores(groups: Path = OWN_GROUPS, hierarchy: Path = CONTROL_GROUPS) -> int | None:
    """Whole cores whose time the control groups of this process grant it; None where none of them says."""
    return min(_quotas(groups, hierarchy), default=None)


def _quotas(groups: Path, hierarchy: Path) -> Iterator[int]:
    """Whole cores that each control group grants, of either version; a part of one counts as one."""
    for is_unified, folder in control_groups("cpu", groups, hierarchy):
        names = ("cpu.max",) if is_unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = " ".join(line for name in names for line in lines(folder / name)).split()
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            yield max(1, -(-int(words[0]) // int(words[1])))


def thread_notes(num_threads: int | None, processes: int = 1) -> Iterator[str]:
    """Yields a note of more threads than cores. processes: of this machine, each with so many threads."""
    cores = usable_cores()
    if num_threads is None or num_threads * processes <= cores:
        return
    suffix = f" for each of {processes} processes" if processes > 1 else ""
    there = "1 core is" if cores == 1 else f"{cores} cores are"
    yield (
        f"runtime.num_threads={num_threads}{suffix}: {there} there, and more threads than cores wait for one "
        "another, which may take many times as long; leave it out for one a core"
    )
