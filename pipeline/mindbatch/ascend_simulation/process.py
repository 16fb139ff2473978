"""Runs a function in a child process in which MindSpore simulates an NPU.

This module does not import MindSpore; the function does.
"""

import json
import os
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from mindbatch.ascend_simulation.saved_graphs import first_line
from mindbatch.ascend_simulation.stubs import LIBRARIES, PACKAGES, AscendPlugin, find_plugin, stub_libraries
from mindbatch.config.environment import cache_folder
from mindbatch.io.child_main import die_with, limit
from mindbatch.io.children import Child, end_session
from mindbatch.io.errors import BackendError
from mindbatch.io.screen_text import TerminalText
from mindbatch.io.storage import TemporaryFolder

_LOG_NAME = "mindspore.log"
# Variables of a real cluster or device, which would change the simulated one.
_DROPPED_PREFIXES = ("MS_", "RANK_", "ASCEND_", "HCCL_", "OMPI_", "PMIX_", "PMI_")
_DROPPED = {"DEVICE_NUM", "MINDSPORE_HCCL_CONFIG_PATH", "HELP_CLUSTER"}
_NAME = "the simulation of Ascend"
_CHUNK = 4096
_LONGEST_LINE = 300
_ALWAYS_LOGGED = "_check_version.py"  # warns that CANN's packages are missing


def simulate(
    function: Callable[..., Iterator[Any]],
    *arguments: str,
    seconds: float = 600.0,
    memory_bytes: int = 16 << 30,
    verbose: bool = False,
) -> Iterator[Any]:
    """Yields the JSON values that the function yields in the child.

    Args:
        function: a function of a module. It may choose the device Ascend and compile for it. Its current
            folder is a temporary one.
        seconds: limit of wall-clock time.
        memory_bytes: limit of address space.
        verbose: prints MindSpore's log to standard error at the end.

    Raises:
        BackendError: the simulation cannot be set up (no plugin, another version of MindSpore, no compiler),
            the function raised, or the process died or exceeded its limits.
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
        "memory_bytes": memory_bytes,
    }
    with (
        TemporaryFolder() as folder,
        _child(folder, plugin, stubs, verbose) as child,
    ):
        log = folder / _LOG_NAME
        try:
            child.connection.send_bytes(json.dumps(job).encode())  # an argument has 128 KiB at most
            yield from _reports(child, seconds, log)
        except (EOFError, OSError) as error:
            memory = f"most likely out of memory (limit {memory_bytes / (1 << 30):.1f} GiB)"
            raise BackendError(f"{_NAME} ended with {child.death()}, {memory}{_last_line(log)}") from error


def _reports(child: Child, seconds: float, log: Path) -> Iterator[Any]:
    deadline, values = time.monotonic() + seconds, answers(child.connection, _NAME)
    while child.connection.poll(max(0.0, deadline - time.monotonic())):
        try:
            value = next(values)
        except StopIteration:
            return
        yield value
    advice = "try: a longer layout.timeout"
    raise BackendError(f"{_NAME} has not ended after {seconds:g} s; {advice}{_last_line(log)}")


@contextmanager
def _child(folder: Path, plugin: AscendPlugin, stubs: Path, verbose: bool) -> Iterator[Child]:
    """Starts the child process; ends it and all of its children after the block."""
    libraries = [stubs / LIBRARIES, *plugin.search_folders]
    environment = _environment(libraries, folder, verbose=verbose)
    log = folder / _LOG_NAME
    with log.open("wb") as errors:
        child = Child(run_job, cwd=folder, env=environment, stderr=errors)
    try:
        yield child
    finally:
        end_session(child.process)
        child.end()
        if verbose:
            _show(log)


def _environment(libraries: Sequence[Path], scratch: Path, *, verbose: bool) -> dict[str, str]:
    """Returns the environment variables of a child that simulates an NPU.

    libraries: folders at the start of LD_LIBRARY_PATH.
    scratch: the folder for the logs of MindSpore and MindFormers and files of a failed compilation.
    """
    kept = {
        name: text
        for name, text in os.environ.items()
        if name not in _DROPPED and not name.startswith(_DROPPED_PREFIXES)
    }
    current_folders = filter(
        None, kept.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    )  # "" is the current folder
    return {
        **kept,
        "LD_LIBRARY_PATH": os.pathsep.join([*map(str, libraries), *current_folders]),
        "MS_SIMULATION_LEVEL": "1",  # compile, but run nothing
        "MS_DEV_SAVE_GRAPHS": "1",  # as text, to read the kernels of each graph from the last one
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


def _last_line(log: Path) -> str:
    """Returns the last line of the log, which may explain the death of a process."""
    lines = log.read_bytes()[-_CHUNK:].decode(errors="replace").split("\n")
    words = [" ".join(line.split()) for line in lines if line.strip() and _ALWAYS_LOGGED not in line]
    return f"; its last line: {words[-1][:_LONGEST_LINE]}" if words else ""


def _show(log: Path) -> None:
    sys.stderr.flush()
    with log.open(errors="replace") as text:
        shutil.copyfileobj(text, TerminalText(sys.stderr))


_REPORT, _DONE, _FAILED = "report", "done", "failed"
_LONGEST_ERROR = 2000


def run_job(connection: Connection) -> NoReturn:
    """Receives a job, JSON of `simulate`, runs its function and sends the values that it yields."""
    todo = json.loads(connection.recv_bytes())
    limit(resource.RLIMIT_AS, todo["memory_bytes"])
    limit(resource.RLIMIT_CORE, 0)
    sys.path[:] = [todo["packages"], *sys.path, todo["import_path"]]

    def values() -> Iterator[Any]:
        function = getattr(import_module(todo["module"]), todo["function"])
        yield from function(*todo["arguments"])

    _answer(connection, values)


def as_rank(rank: int, num_ranks: int, function: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yields the JSON values that the function yields in a fork that simulates a rank.

    The fork saves importing MindSpore again. It must be made before this process chooses a device; the
    function chooses it and calls `init()`.

    Raises:
        BackendError: the function raised, or the fork ended with an error.
    """
    name = f"rank {rank} of {num_ranks}"
    ours, theirs = Pipe(duplex=False)
    parent = os.getpid()
    process = os.fork()
    if not process:
        ours.close()

        def values() -> Iterator[Any]:
            die_with(parent)
            # The rank and number of ranks for MindSpore's simulation.
            os.environ.update(RANK_SIZE=str(num_ranks), RANK_ID=str(rank))
            yield from function()

        _answer(theirs, values)
    theirs.close()
    try:
        with ours, suppress(EOFError, OSError):
            yield from answers(ours, name)
    finally:
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code:
        reason = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
        raise BackendError(f"{name}: {reason}")


def answers(connection: Connection, name: str) -> Iterator[Any]:
    """Yields the values that a process sends.

    Raises:
        BackendError: its function raised; each line of the error starts with `name`.
        EOFError, OSError: the process has died.
    """
    while True:
        kind, value = json.loads(connection.recv_bytes())
        if kind == _DONE:
            return
        if kind == _FAILED:
            raise BackendError(f"{name}: {line}" for line in value)
        yield value


def _answer(connection: Connection, function: Callable[[], Iterable[Any]]) -> NoReturn:
    """Sends the values that the function yields, or the lines of its error, and ends the process."""
    try:
        for value in function():
            _send(connection, _REPORT, value)
        _send(connection, _DONE, None)
    except BaseException as error:
        traceback.print_exc()
        _send(connection, _FAILED, _lines_of(error))
    finally:
        # MindSpore's own exit handlers wait for devices and log errors.
        sys.stderr.flush()
        os._exit(0)


def _send(connection: Connection, kind: str, value: Any) -> None:
    connection.send_bytes(json.dumps([kind, value]).encode("ascii"))


def _lines_of(error: BaseException) -> list[str]:
    """Returns the lines of an error of this project, or the first line of any other error."""
    errors = getattr(error, "lines", [first_line(error)])
    return [" ".join(str(problem).split())[:_LONGEST_ERROR] for problem in errors]
