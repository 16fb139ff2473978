"""Runs a function in a process of its own, where MindSpore takes the machine for one with an NPU."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.ascend_simulation import worker
from mindbatch.ascend_simulation.plugin import AscendPlugin, find_plugin
from mindbatch.ascend_simulation.stubs import LIBRARIES, PACKAGES, stub_libraries
from mindbatch.config.environment import cache_folder
from mindbatch.io.children import Child, end_session
from mindbatch.io.errors import BackendError
from mindbatch.io.screen_text import TerminalText
from mindbatch.io.storage import TemporaryFolder

_LOG_NAME = "mindspore.log"
# A user's cluster or device: nothing of it may reach the pretended one.
_DROPPED_PREFIXES = ("MS_", "RANK_", "ASCEND_", "HCCL_", "OMPI_", "PMIX_", "PMI_")
_DROPPED = {"DEVICE_NUM", "MINDSPORE_HCCL_CONFIG_PATH", "HELP_CLUSTER"}
_WHO = "the simulation of Ascend"
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


def simulate(
    function: Callable[..., Iterator[Any]],
    *arguments: str,
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
    code = Path(str(sys.modules[function.__module__].__file__))
    job = {
        "import_path": str(code.parents[function.__module__.count(".")]),  # may be the current folder
        "module": function.__module__,
        "function": function.__name__,
        "arguments": arguments,
        "packages": str(stubs / PACKAGES),
        "memory_bytes": limits.memory_bytes,
    }
    with (
        TemporaryFolder() as folder,
        _child(json.dumps(job), folder, plugin, stubs, verbose) as child,
    ):
        yield from _reports(child, limits, folder / _LOG_NAME)


@contextmanager
def _child(job: str, folder: Path, plugin: AscendPlugin, stubs: Path, verbose: bool) -> Iterator[Child]:
    """The process; it is gone at the end, with all of its children."""
    libraries = [stubs / LIBRARIES, *plugin.search_folders]
    environment = _environment(libraries, folder, verbose=verbose)
    log = folder / _LOG_NAME
    with log.open("wb") as errors:
        child = Child(worker.main, job, cwd=folder, env=environment, stderr=errors)
    try:
        yield child
    finally:
        end_session(child.process)
        child.end()
        if verbose:
            _show(log)


def _environment(libraries: Sequence[Path], scratch: Path, *, verbose: bool) -> dict[str, str]:
    """This process's variables as a child needs them that simulates an NPU.

    libraries: folders whose libraries go before all others. scratch: takes the logs of MindSpore and
    MindFormers and what a failed compilation leaves.
    """
    kept = {
        name: text
        for name, text in os.environ.items()
        if name not in _DROPPED and not name.startswith(_DROPPED_PREFIXES)
    }
    own_folders = filter(None, kept.get("LD_LIBRARY_PATH", "").split(os.pathsep))  # "" is the current folder
    return {
        **kept,
        "LD_LIBRARY_PATH": os.pathsep.join([*map(str, libraries), *own_folders]),
        "MS_SIMULATION_LEVEL": "1",  # compiles all, and runs nothing
        "MS_DEV_SAVE_GRAPHS": "1",  # as text: the kernels of each graph are read off the last one
        "MS_DEV_SAVE_GRAPHS_PATH": str(scratch),
        "MS_DEV_DUMP_IR_PASSES": "graph_build",
        "MS_ENABLE_INTERNAL_BOOST": "off",  # the library of inference kernels does not load over stubs
        "DEVICE_ID": "0",
        "GLOG_v": "2" if verbose else "3",
        "LOG_MF_PATH": str(scratch / "logs"),
        "MS_OM_PATH": str(scratch / "logs"),
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
        "HF_HUB_OFFLINE": "1",
    }


def _reports(child: Child, limits: SimulationLimits, log: Path) -> Iterator[Any]:
    deadline, values = time.monotonic() + limits.seconds, worker.answers(child.connection, _WHO)
    while True:
        if not child.connection.poll(max(0.0, deadline - time.monotonic())):
            longer = f"; {limits.seconds_key} gives it longer" if limits.seconds_key else ""
            last_line = _last_words(log)
            raise BackendError(f"{_WHO} has not ended after {limits.seconds:g} s{longer}{last_line}")
        try:
            value = next(values)
        except StopIteration:
            return
        except (EOFError, OSError) as error:
            memory = f"most likely out of memory (limit {limits.memory_bytes / (1 << 30):.1f} GiB)"
            raise BackendError(f"{_WHO} ended with {child.death()}, {memory}{_last_words(log)}") from error
        yield value


def _last_words(log: Path) -> str:
    """The end of the log: what a process says that cannot report any more."""
    lines = log.read_bytes()[-_CHUNK:].decode(errors="replace").split("\n")
    words = [" ".join(line.split()) for line in lines if line.strip() and _ALWAYS_SAID not in line]
    return f"; its last line: {words[-1][:_LONGEST_LINE]}" if words else ""


def _show(log: Path) -> None:
    sys.stderr.flush()
    with log.open(errors="replace") as text:
        shutil.copyfileobj(text, TerminalText(sys.stderr))
