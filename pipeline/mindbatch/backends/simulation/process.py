"""Runs a function in a process of its own, where MindSpore takes the machine for one with an NPU."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.backends.failure import BackendError
from mindbatch.backends.simulation import worker
from mindbatch.backends.simulation.plugin import AscendPlugin, find_plugin
from mindbatch.backends.simulation.stubs import LIBRARIES, PACKAGES, stub_libraries
from mindbatch.children import Child, end_session
from mindbatch.config.environment import cache_folder, simulation_environment
from mindbatch.leftovers import TemporaryFolder
from mindbatch.screen_text import TerminalText

LOG_NAME = "mindspore.log"
_CHUNK = 4096
_LONGEST_LINE = 300
_ALWAYS_SAID = "_check_version.py"  # that CANN's packages are missing


@dataclass(frozen=True, kw_only=True)
class SimulationLimits:
    """Limits of a run: seconds by the clock, bytes of address space.

    seconds_key: the option that gives it longer.
    """

    seconds: float = 600.0
    seconds_key: str = ""
    memory_bytes: int = 16 << 30


@dataclass(frozen=True)
class SimulatedRank:
    """Rank of the process, and the number of ranks; `init()` of MindSpore's communication makes it so."""

    rank: int = 0
    num_ranks: int = 1


def simulate(
    function: Callable[..., Iterator[Any]],
    *arguments: str,
    rank: SimulatedRank = SimulatedRank(),
    limits: SimulationLimits = SimulationLimits(),
    verbose: bool = False,
) -> Iterator[Any]:
    """Yields what the function yields, as it comes: values of JSON.

    function: of a module, by name; it may choose the device Ascend and compile for it. What it writes goes to
        a folder of its own, which is its current one and is removed at the end.
    verbose: what MindSpore says is printed to standard error at the end.

    Raises:
        BackendError: the simulation cannot be set up (no plugin, another version of MindSpore, no compiler);
            the function raised (its lines); the process died or went beyond its limits.
    """
    plugin = find_plugin()
    stubs = stub_libraries(plugin, cache_folder())
    job = {
        "module": function.__module__,
        "function": function.__name__,
        "arguments": arguments,
        "packages": str(stubs / PACKAGES),
        "memory_bytes": limits.memory_bytes,
    }
    with (
        TemporaryFolder() as folder,
        _child(json.dumps(job), folder, plugin, stubs, rank, verbose) as child,
    ):
        yield from _reports(child, rank, limits, folder / LOG_NAME)


@contextmanager
def _child(
    job: str, folder: Path, plugin: AscendPlugin, stubs: Path, rank: SimulatedRank, verbose: bool
) -> Iterator[Child]:
    """The process; it is gone at the end, with all of its children."""
    libraries = [stubs / LIBRARIES, *plugin.search_folders]
    environment = simulation_environment(libraries, folder, rank.rank, rank.num_ranks, verbose=verbose)
    log = folder / LOG_NAME
    with log.open("wb") as errors:
        child = Child(worker.main, job, cwd=folder, env=environment, stderr=errors)
    try:
        yield child
    finally:
        end_session(child.process)
        child.end()
        if verbose:
            _show(log)


def _reports(child: Child, rank: SimulatedRank, limits: SimulationLimits, log: Path) -> Iterator[Any]:
    deadline = time.monotonic() + limits.seconds
    while True:
        if not child.connection.poll(max(0.0, deadline - time.monotonic())):
            longer = f"; {limits.seconds_key} gives it longer" if limits.seconds_key else ""
            said = _last_words(log)
            raise BackendError(f"{_who(rank)} has not ended after {limits.seconds:g} s{longer}{said}")
        try:
            kind, value = json.loads(child.connection.recv_bytes())
        except (EOFError, OSError) as error:
            memory = f"most likely out of memory (limit {limits.memory_bytes / (1 << 30):.1f} GiB)"
            death = f"{_who(rank)} ended with {child.death()}, {memory}"
            raise BackendError(f"{death}{_last_words(log)}") from error
        if kind == worker.DONE:
            return
        if kind == worker.FAILED:
            raise BackendError(f"{_who(rank)}: {line}" for line in value)
        yield value


def _who(rank: SimulatedRank) -> str:
    which = f", rank {rank.rank} of {rank.num_ranks}" if rank.num_ranks > 1 else ""
    return f"the simulation of Ascend{which}"


def _last_words(log: Path) -> str:
    """The end of the log: what a process says that cannot report any more."""
    lines = log.read_bytes()[-_CHUNK:].decode(errors="replace").split("\n")
    said = [" ".join(line.split()) for line in lines if line.strip() and _ALWAYS_SAID not in line]
    return f"; its last line: {said[-1][:_LONGEST_LINE]}" if said else ""


def _show(log: Path) -> None:
    sys.stderr.flush()
    with log.open(errors="replace") as text:
        shutil.copyfileobj(text, TerminalText(sys.stderr))
