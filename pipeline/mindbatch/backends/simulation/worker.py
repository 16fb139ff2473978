"""First code of a process that simulates an NPU: limits, stub packages, then the given function.

It imports nothing of MindSpore: that is the function's business.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from mindbatch.backends.simulation.forks import first_line
from mindbatch.child_main import limit

REPORT, DONE, FAILED = "report", "done", "failed"
_LONGEST_LINE = 2000


def main(connection: Connection, job: str) -> None:
    """Sends each value that the function yields, then DONE; or FAILED with the lines of its error.

    job: JSON of `process.Job`.
    """
    todo = json.loads(job)
    limit(resource.RLIMIT_AS, todo["memory_bytes"])
    limit(resource.RLIMIT_CORE, 0)
    sys.path.insert(0, todo["packages"])
    try:
        function: Callable[..., Iterator[Any]] = getattr(import_module(todo["module"]), todo["function"])
        for value in function(*todo["arguments"]):
            _send(connection, REPORT, value)
        _send(connection, DONE, None)
    except BaseException as error:
        traceback.print_exc()
        _send(connection, FAILED, _lines_of(error))
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
