"""First code of a child process: isolates it, ties it to its parent's life, and calls one function.

Run by `children` as a program (`python -I`). It imports nothing but the module of that function, and that one
without the packages above it, so that a small child stays small.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing.connection import Connection
from typing import Any

_SET_PDEATHSIG = 1  # prctl(2)
READY = b"ready"


def main(start: str, parent: str) -> object:
    """start: see `children.command`. parent: the process id of who started this one."""
    die_with(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the thread that starts processes blocks two
    todo = json.loads(start)
    sys.path[:] = todo["import_path"]
    function = _function(*todo["function"])
    if todo["connection"] is None:
        return function(*todo["arguments"])
    with Connection(todo["connection"]) as connection:
        return function(connection, *todo["arguments"])


def die_with(parent: int) -> None:
    """Ends this process with the thread that started it, however that one ends."""
    import ctypes

    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Lets this process outlive its parent, as it has something to do then."""
    import ctypes

    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, 0)


def serve(connection: Connection, answer: Callable[[Any], Any], seconds: float, memory_bytes: int) -> None:
    """Answers requests until the connection closes; requests and answers are JSON.

    answer: returns the answer to a request; bytes are sent as they are.
    seconds: processor time for an answer, after which the kernel ends the process. A process that is stopped,
        or waits for a processor, uses none.
    """
    limit(resource.RLIMIT_AS, memory_bytes)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, 0)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    connection.send_bytes(READY)
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, seconds)
        answered = answer(json.loads(request))
        if not isinstance(answered, bytes):
            answered = json.dumps(answered).encode("ascii")
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(answered)


def limit(kind: int, amount: int) -> None:
    """Limits a resource of this process with `setrlimit`; a lower limit that exists is kept."""
    hard = resource.getrlimit(kind)[1]
    amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    resource.setrlimit(kind, (amount, amount))


def _function(module: str, file: str, name: str) -> Callable[..., object]:
    spec = spec_from_file_location(module, file)
    assert spec is not None
    assert spec.loader is not None
    # Under its own name, by which what it sends is known to the other side.
    loaded = sys.modules[module] = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    function: Callable[..., object] = getattr(loaded, name)
    return function


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))  # type: ignore[arg-type]
