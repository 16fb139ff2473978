"""Memory and processors of this machine, within the limits of this process, and its installed packages."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from decimal import Decimal
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from mindbatch.io.installation import is_installed

GIB = 1 << 30
MEMINFO = Path("/proc/meminfo")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
MEMORY_LIMIT = CONTROL_GROUPS / "memory.max"
OWN_GROUPS = Path("/proc/self/cgroup")
_NO_LIMIT = 1 << 60  # what the first version of control groups says where there is none

UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for suffix, base in (("B", 1000), ("IB", 1024))
    for power, letter in enumerate("KMGT", start=1)
}
ALLOWED = "bytes, or a number with KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)"
_PATTERN = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)\s*")


def memory(meminfo: Path = MEMINFO, limit: Path = MEMORY_LIMIT, groups: Path = OWN_GROUPS) -> dict[str, int]:
    """Reads the bytes of memory: `total`, `available`, and the `limit` of the control group, if any."""
    kilobytes = dict(line.split(":", 1) for line in lines(meminfo) if ":" in line)
    sizes = {
        name: int(kilobytes[field].split()[0]) * 1024
        for name, field in (("total", "MemTotal"), ("available", "MemAvailable"))
        if field in kilobytes
    }
    texts = ("".join(lines(file)).strip() for file in (limit, *_limits_of(groups, limit.parent)))
    maxima = [int(text) for text in texts if text.isdigit() and int(text) < _NO_LIMIT]
    return sizes | ({"limit": min(maxima)} if maxima else {})


def _limits_of(groups: Path, hierarchy: Path) -> Iterator[Path]:
    """Yields the files with memory limits: of the process's control group and of all above it."""
    for is_unified, group in control_groups("memory", groups, hierarchy):
        yield group / ("memory.max" if is_unified else "memory.limit_in_bytes")


def control_groups(
    controller: str, groups: Path = OWN_GROUPS, hierarchy: Path = CONTROL_GROUPS
) -> Iterator[tuple[bool, Path]]:
    """Yields the folders of this process's control group and of all above it; True for version 2."""
    for line in lines(groups):
        number, controllers, name = (line.split(":", 2) + ["", ""])[:3]
        group = PurePosixPath(name)
        for above in (group, *group.parents):
            if number == "0":
                yield True, hierarchy / str(above).lstrip("/")
            elif controller in controllers.split(","):
                yield False, hierarchy / controller / str(above).lstrip("/")


def free_memory() -> int | None:
    """Returns the bytes of free memory; None if the system does not report them."""
    sizes = memory()
    return min((sizes[key] for key in ("available", "limit") if key in sizes), default=None)


class MachineMemory(NamedTuple):
    """Bytes of memory of a machine or its container, all and free. name: the machine, None if it is this."""

    whole: int
    free: int
    name: str | None = None


def memory_here() -> MachineMemory | None:
    sizes = memory()
    whole = min((sizes[key] for key in ("total", "limit") if key in sizes), default=None)
    return None if whole is None else MachineMemory(whole, free_memory() or 0)


def lines(file: Path) -> list[str]:
    """Reads the lines of a system file; none if the system has no such file."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def parse_bytes(text: str) -> int:
    """Reads an amount of memory, at least 1 byte. Raises ValueError with the allowed forms."""
    match = _PATTERN.fullmatch(text)
    unit = UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f"must be {ALLOWED}")
    size = int(Decimal(match[1]) * unit)
    if size < 1:
        raise ValueError("must be at least one byte")
    return size


def usable_cores() -> int:
    """Counts the cores that this process may use, by its CPU affinity and its control groups."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(bound, granted_cores() or bound)


def granted_cores(groups: Path = OWN_GROUPS, hierarchy: Path = CONTROL_GROUPS) -> int | None:
    """Returns the cores that the control groups grant this process; None if none has a quota."""
    return min(_quotas(groups, hierarchy), default=None)


def _quotas(groups: Path, hierarchy: Path) -> Iterator[int]:
    """Yields the cores that each control group grants, rounded up."""
    for is_unified, folder in control_groups("cpu", groups, hierarchy):
        names = ("cpu.max",) if is_unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = " ".join(line for name in names for line in lines(folder / name)).split()
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            yield max(1, -(-int(words[0]) // int(words[1])))


def thread_notes(num_threads: int | None, processes: int = 1) -> Iterator[str]:
    """Yields a note if there are more threads than cores. processes: how many have so many threads each."""
    cores = usable_cores()
    if num_threads is None or num_threads * processes <= cores:
        return
    suffix = f" for each of {processes} processes" if processes > 1 else ""
    there = "1 core is" if cores == 1 else f"{cores} cores are"
    yield (
        f"runtime.num_threads={num_threads}{suffix}: {there} there, and more threads than cores wait for one "
        "another, which may take many times as long; leave it out for one a core"
    )


HYPER_PARALLEL = "hyper_parallel"
"""MindFormers 2.0 and 2.1 import it for training; PyPI does not have it."""
MINDFORMERS_RELEASES = ("1.9", "2.0", "2.1")
"""Releases of MindFormers whose inference networks `model.provider=mindformers` runs."""


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Returns the versions of those packages that are installed."""
    installed = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def mindformers_error() -> str | None:
    """Names the installed MindFormers and those allowed; None if it is one of these, or none is installed."""
    release = versions(["mindformers"]).get("mindformers")
    if release is None or ".".join(release.split(".")[:2]) in MINDFORMERS_RELEASES:
        return None
    return f"MindFormers {release} is installed; allowed: {', '.join(MINDFORMERS_RELEASES)}"


def lacks_hyper_parallel() -> bool:
    """True if the installed MindFormers requires hyper_parallel, and that is not installed."""
    try:
        needed = requires("mindformers") or []
    except PackageNotFoundError:
        return False
    return any(line.startswith("hyper-parallel") for line in needed) and not is_installed(HYPER_PARALLEL)
