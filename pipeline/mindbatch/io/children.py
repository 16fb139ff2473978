"""Child processes: isolated from the current folder, limited, and gone when their parent is."""

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mindbatch.io.child_main import READY
from mindbatch.io.errors import passing_error
from mindbatch.io.storage import StorageError

_PACKAGE = Path(__file__).parents[1]
_MAIN = _PACKAGE / "io/child_main.py"
_CHUNK = 1 << 16
_TICK_SECONDS = 1.0
_IDLE_TICKS = 60
"""Ticks that a child may sleep during a request without computing."""


def command(function: Callable[..., object], *arguments: str, connection: int | None = None) -> list[str]:
    """Returns the command that calls `function(connection, *arguments)`; without connection if that is None.

    function: a function of a module of this package. connection: the file descriptor of its end of a pipe.
    The caller adds the process id of the parent as the last argument.
    """
    code = getattr(sys.modules[function.__module__], "__file__", None)
    todo = {
        "import_path": _import_path(),
        "function": [function.__module__, code, function.__name__],
        "connection": connection,
        "arguments": arguments,
    }
    # Isolated: nothing in the current folder or in the environment can stand in for a module.
    return [sys.executable, "-I", str(_MAIN), json.dumps(todo)]


def _import_path() -> list[str]:
    """Returns the import path of this process without the current folder; the package's folder is the
    last."""
    here, ours = os.getcwd(), str(_PACKAGE.parent)
    folders = [folder for folder in sys.path if folder and os.path.realpath(folder) not in {here, ours}]
    return [*map(os.path.abspath, folders), ours]


def spawn(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a command in a session of its own, with the options of Popen; it is killed when this process
    ends.

    The kernel kills it when the thread that started it ends, so one lasting thread starts all.
    """
    whole = [*command, str(os.getpid())]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(whole, start_new_session=True, **options)

    return _lasting_thread().submit(start).result()


@dataclass(frozen=True)
class Finished:
    """Outcome of a program. code: the exit code, or minus the signal that ended it."""

    code: int
    output: str
    errors: str


def run(command: Sequence[str], seconds: float, max_bytes: int = 1 << 30) -> Finished:
    """Runs a program without input in a session of its own, and kills that session afterwards.

    max_bytes: maximum size of both outputs together; a program that writes more is killed.

    Raises:
        TimeoutError: the program did not end in time, and was killed.
        OSError: the program cannot be started.
    """
    deadline = time.monotonic() + seconds
    with subprocess.Popen(
        [*command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            output, errors = _outputs(process, deadline, max_bytes)
            if len(output) + len(errors) < max_bytes:
                process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            end_session(process)
    return Finished(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))


def _outputs(process: subprocess.Popen[bytes], deadline: float, max_bytes: int) -> list[bytearray]:
    """Reads both pipes of a process until they close or have `max_bytes`. Raises TimeoutError."""
    outputs = {pipe.fileno(): bytearray() for pipe in (process.stdout, process.stderr) if pipe is not None}
    with selectors.DefaultSelector() as selector:
        for pipe in outputs:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map() and sum(map(len, outputs.values())) < max_bytes:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK)
                outputs[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
    return [*outputs.values()]


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that leads a session, with its children, and waits until it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Child:
    """A process that runs a function of this package, and a pipe to it; it ends with this object.

    options: of Popen.
    """

    def __init__(self, function: Callable[..., object], *arguments: str, **options: Any) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            self.process = spawn(
                command(function, *arguments, connection=theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                **options,
            )
        self.end = weakref.finalize(self, _end, self.process, self.connection, os.getpid())
        """Kills the process and waits until it is gone; does nothing in a fork of the parent."""

    def death(self) -> str:
        """Waits for the process to end and describes how it ended."""
        code = self.process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _end(process: subprocess.Popen[bytes], connection: Connection, owner: int) -> None:
    if os.getpid() == owner:
        process.kill()  # before it finds its connection closed, and ends in some other way
        process.wait()
    connection.close()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Resource limits of a request to a child: seconds of processor time, bytes of address space."""

    seconds: float
    memory_bytes: int


class ProcessorTimeUsedUp(Exception):
    """A request took more processor time than it may."""


class ChildDied(Exception):
    """The child ended during a request; the message describes how."""


class AnsweringProcess:
    """Sends requests to a child, which it starts when needed, and again after a request has ended it.

    Safe to use from several threads and after a fork.

    function: a function of this package that calls `child_main.serve`; it gets the arguments.
    """

    def __init__(self, function: Callable[..., object], limits: Limits, *arguments: str) -> None:
        self._start = partial(
            Child,
            function,
            str(limits.seconds),
            str(limits.memory_bytes),
            *arguments,
            stderr=subprocess.DEVNULL,
        )
        self.limits = limits
        self._lock = threading.Lock()
        self._child: Child | None = None
        _all.add(self)

    def ask(self, request: bytes, max_bytes: int) -> Any:
        """Returns the answer to a request; both are JSON.

        max_bytes: maximum size of the answer.

        Raises:
            ProcessorTimeUsedUp: the request took more processor time than it may.
            ChildDied: the child ended, in most cases for lack of memory.
            StorageError: the system has no memory or descriptor for a process, whatever the request.
        """
        with self._lock:
            try:
                if self._child is None or self._child.process.poll() is not None:
                    self._child = self._started()
                self._child.connection.send_bytes(request)
                return json.loads(_received(self._child, max_bytes))
            except (EOFError, OSError) as error:
                raise self._failure(error) from error
            except BaseException:
                self._stop()  # an interrupted exchange would leave its answer to the next request
                raise

    def close(self) -> None:
        """Ends the child; the next request starts it again."""
        with self._lock:
            self._stop()

    def _started(self) -> Child:
        self._stop()
        child = self._start()
        try:
            _received(child, len(READY))
        except (EOFError, OSError) as error:
            raise ChildDied(f"its process did not start ({sys.executable}: {child.death()})") from error
        return child

    def _failure(self, error: Exception) -> Exception:
        """Ends the child; returns the error that describes its end."""
        child, self._child = self._child, None
        if child is None and passing_error(error) is not None:
            return StorageError(f"a process cannot be started ({error})")
        if child is None:
            return ChildDied(f"its process did not start ({error})")
        if not isinstance(error, EOFError | ConnectionError):  # it is still there
            child.end()
            does = "does nothing any more" if isinstance(error, TimeoutError) else "answers more than it may"
            return ChildDied(f"its process {does}")
        outcome = child.death()
        if child.process.returncode == -signal.SIGPROF:
            return ProcessorTimeUsedUp()
        memory = f"most likely out of memory (limit {self.limits.memory_bytes >> 20} MiB)"
        return ChildDied(f"its process ended with {outcome}, {memory}")

    def _stop(self) -> None:
        if self._child is not None:
            self._child.end()
        self._child = None

    def _forget(self) -> None:
        """Drops the child in a forked process, as it is the parent's."""
        self._lock = threading.Lock()
        self._child = None


def _received(child: Child, max_bytes: int) -> bytes:
    """Reads the child's answer, waiting as long as it works: the child itself bounds its processor time.

    Raises:
        TimeoutError: the child slept for `_IDLE_TICKS`; being stopped or waiting for a processor does not
            count.
        EOFError, OSError: the child has died, or sent more than it may.
    """
    idle, before = 0, ""
    while not child.connection.poll(_TICK_SECONDS):
        now = _activity(child.process.pid)
        idle = idle + 1 if now == before and now.startswith("S") else 0
        before = now
        if idle == _IDLE_TICKS:
            raise TimeoutError
    return child.connection.recv_bytes(max_bytes)


def _activity(process: int) -> str:
    """Returns the state of a process (S: sleeping) and the processor time that it has used; see proc(5)."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return " ".join((fields[0], *fields[11:13]))
    return ""


_all: weakref.WeakSet[AnsweringProcess] = weakref.WeakSet()
_starter: ThreadPoolExecutor | None = None
_starting = threading.Lock()


def _lasting_thread() -> ThreadPoolExecutor:
    global _starter
    with _starting:
        if _starter is None:
            # These are the main thread's business.
            blocked = (signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
            _starter = ThreadPoolExecutor(1, "children", signal.pthread_sigmask, blocked)
        return _starter


def _begin_anew() -> None:
    """Resets a forked process, which has none of its parent's threads and must not share its children."""
    global _starter, _starting
    _starter, _starting = None, threading.Lock()
    for process in list(_all):
        process._forget()


os.register_at_fork(after_in_child=_begin_anew)
