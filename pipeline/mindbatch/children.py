"""Child processes: they run a function of this package, talk through a pipe, and die with their parent."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection

Child = subprocess.Popen[bytes]

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from mindbatch.children import run_here; run_here(*sys.argv[2:])"
)
"""Unlike those of multiprocessing, the process does not import what the parent's main module does."""

_SET_PDEATHSIG = 1  # prctl(2)


def start(function: Callable[..., None], *arguments: str) -> tuple[Connection, Child]:
    """Calls `function(connection, *arguments)` in a new process; the connection's other end is given back.

    function: of a module of this package, by name.
    """
    ours, theirs = Pipe()
    place = f"{function.__module__}:{function.__name__}"
    with theirs, _interrupts_blocked():
        command = [place, str(theirs.fileno()), str(os.getpid()), *arguments]
        child = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return ours, child


def end(child: Child, connection: Connection) -> None:
    """Kills it, whatever it does; returns when it is gone."""
    child.kill()
    child.wait()
    connection.close()


def run_here(place: str, connection: str, parent: str, *arguments: str) -> None:
    """The life of the new process."""
    die_with(int(parent))
    module, _, function = place.partition(":")
    with Connection(int(connection)) as opened:
        getattr(import_module(module), function)(opened, *arguments)


def die_with(parent: int) -> None:
    """This process shall not outlive its parent, however that one ends."""
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C waits meanwhile, and in the child for good: it would die of it with a traceback.

    Ctrl-C goes to all processes of a terminal; the parent ends its children.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
