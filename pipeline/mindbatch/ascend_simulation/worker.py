"""First code of a process that simulates an NPU: limits, stub packages, a function, and ranks in its forks.

It imports nothing of MindSpore: that is the function's business.
"""

import json
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from mindbatch.ascend_simulation.saved_graphs import first_line
from mindbatch.io.child_main import die_with, limit
from mindbatch.io.errors import BackendError

_REPORT, _DONE, _FAILED = "report", "done", "failed"
_LONGEST_LINE = 2000


def main(connection: Connection, job: str) -> NoReturn:
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
    """The faults of an error of this project, or the first line of another's many."""
    faults = getattr(error, "faults", [first_line(error)])
    return [" ".join(str(fault).split())[:_LONGEST_LINE] for fault in faults]
