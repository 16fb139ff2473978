"""Runs a function in a process of its own, where MindSpore takes the machine for one with an NPU.

It imports nothing of MindSpore: that is the function's business.
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
# A user's cluster or device: nothing of it may reach the pretended one.
_DROPPED_PREFIXES = ("MS_", "RANK_", "ASCEND_", "HCCL_", "OMPI_", "PMIX_", "PMI_")
_DROPPED = {"DEVICE_NUM", "MINDSPORE_HCCL_CONFIG_PATH", "HELP_CLUSTER"}
_WHO = "the simulation of Ascend"
_CHUNK = 4096
_LONGEST_LINE = 300
_ALWAYS_SAID = "_check_version.py"  # that CANN's packages are missing


def simulate(
    function: Callable[..., Iterator[Any]],
    *arguments: str,
    seconds: float = 600.0,
    memory_bytes: int = 16 << 30,
    verbose: bool = False,
) -> Iterator[Any]:
    """Yields what the function yields, as it comes: values of JSON.

    function: of a module, by name; it may choose the device Ascend and compile for it. What it writes goes to
        a folder of its own, which is its current one and is removed at the end.
    seconds: by the clock, at most.
    memory_bytes: of address space, at most.
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
        "memory_bytes": memory_bytes,
    }
    with (
        TemporaryFolder() as folder,
        _child(json.dumps(job), folder, plugin, stubs, verbose) as child,
    ):
        log = folder / _LOG_NAME
        try:
            yield from _reports(child, seconds, log)
        except (EOFError, OSError) as error:
            memory = f"most likely out of memory (limit {memory_bytes / (1 << 30):.1f} GiB)"
            raise BackendError(f"{_WHO} ended with {child.death()}, {memory}{_last_words(log)}") from error


def _reports(child: Child, seconds: float, log: Path) -> Iterator[Any]:
    deadline, values = time.monotonic() + seconds, answers(child.connection, _WHO)
    while child.connection.poll(max(0.0, deadline - time.monotonic())):
        try:
            value = next(values)
        except StopIteration:
            return
        yield value
    longer = "layout.timeout gives it longer"
    raise BackendError(f"{_WHO} has not ended after {seconds:g} s; {longer}{_last_words(log)}")


@contextmanager
def _child(job: str, folder: Path, plugin: AscendPlugin, stubs: Path, verbose: bool) -> Iterator[Child]:
    """The process; it is gone at the end, with all of its children."""
    libraries = [stubs / LIBRARIES, *plugin.search_folders]
    environment = _environment(libraries, folder, verbose=verbose)
    log = folder / _LOG_NAME
    with log.open("wb") as errors:
        child = Child(run_job, job, cwd=folder, env=environment, stderr=errors)
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


def _last_words(log: Path) -> str:
    """The end of the log: what a process says that cannot report any more."""
    lines = log.read_bytes()[-_CHUNK:].decode(errors="replace").split("\n")
    words = [" ".join(line.split()) for line in lines if line.strip() and _ALWAYS_SAID not in line]
    return f"; its last line: {words[-1][:_LONGEST_LINE]}" if words else ""


def _show(log: Path) -> None:
    sys.stderr.flush()
    with log.open(errors="replace") as text:
        shutil.copyfileobj(text, TerminalText(sys.stderr))


_REPORT, _DONE, _FAILED = "report", "done", "failed"
_LONGEST_ERROR = 2000


def run_job(connection: Connection, job: str) -> NoReturn:
    """Runs the function of a job, JSON of `process.simulate`, and answers with what it yields."""
    todo = json.loads(job)
    limit(resource.RLIMIT_AS, todo["memory_bytes"])
    limit(resource.RLIMIT_CORE, 0)
    sys.path[:] = [todo["packages"], *sys.path, todo["import_path"]]

    def values() -> Iterator[Any]:
        function = getattr(import_module(todo["module"]), todo["function"])
        yield from function(*todo["arguments"])

    _answer(connection, values)


def as_rank(rank: int, num_ranks: int, function: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yields what the function yields, values of JSON, in a fork that stands for a rank.

    Forks, so that MindSpore is imported once. It must come before a device is chosen in this process: that,
    and `init()`, are the function's business.

    Raises:
        BackendError: what the function raised, or how the fork ended.
    """
    who = f"rank {rank} of {num_ranks}"
    ours, theirs = Pipe(duplex=False)
    parent = os.getpid()
    process = os.fork()
    if not process:
        ours.close()

        def values() -> Iterator[Any]:
            die_with(parent)
            # Says to MindSpore's simulation which of how many ranks this is.
            os.environ.update(RANK_SIZE=str(num_ranks), RANK_ID=str(rank))
            yield from function()

        _answer(theirs, values)
    theirs.close()
    try:
        with ours, suppress(EOFError, OSError):
            yield from answers(ours, who)
    finally:
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code:
        how = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
        raise BackendError(f"{who}: {how}")


def answers(connection: Connection, who: str) -> Iterator[Any]:
    """Yields the values that a process answers with.

    Raises:
        BackendError: its function raised; the lines of that error, after who it is.
        EOFError, OSError: it has died.
    """
    while True:
        kind, value = json.loads(connection.recv_bytes())
        if kind == _DONE:
            return
        if kind == _FAILED:
            raise BackendError(f"{who}: {line}" for line in value)
        yield value


def _answer(connection: Connection, function: Callable[[], Iterable[Any]]) -> NoReturn:
    """Sends each value that the function yields, or the lines of its error, and ends the process."""
    try:
        for value in function():
            _send(connection, _REPORT, value)
        _send(connection, _DONE, None)
    except BaseException as error:
        traceback.print_exc()
        _send(connection, _FAILED, _lines_of(error))
    finally:
        # MindSpore's own end waits for devices and tells its log about it.
        sys.stderr.flush()
        os._exit(0)


def _send(connection: Connection, kind: str, value: Any) -> None:
    connection.send_bytes(json.dumps([kind, value]).encode("ascii"))


def _lines_of(error: BaseException) -> list[str]:
    """The lines of an error of this project, or the first line of another's many."""
    errors = getattr(error, "lines", [first_line(error)])
    return [" ".join(str(problem).split())[:_LONGEST_ERROR] for problem in errors]
