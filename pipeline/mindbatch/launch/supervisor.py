"""Owns the processes of a job on one machine: a session and a log each, their ends noticed, none left."""

import os
import select
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from mindbatch.io.children import spawn
from mindbatch.io.errors import MindBatchError
from mindbatch.io.interrupts import DEFERRED_SIGNALS, interruptible
from mindbatch.launch.process_log import ProcessLog

ProcessState = Literal["running", "sleeping", "stopped"]
"""running: a thread of it computes, or waits for a processor or a disk. stopped: by a signal or a tracer."""

_BUSY = {"R", "D"}
_STOPPED = {"T", "t"}


def process_state(process: int) -> ProcessState | None:
    """Returns the state of a process; None when it is gone."""
    states = set(_thread_states(Path(f"/proc/{process}/task")))
    if states & _STOPPED:
        return "stopped"
    if states & _BUSY:
        return "running"
    return "sleeping" if states - {"Z", "X"} else None


def _thread_states(tasks: Path) -> list[str]:
    states = []
    with suppress(OSError):
        for task in tasks.iterdir():
            with suppress(OSError):  # a thread that has just ended
                states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states


SECONDS_TO_END = 2.0
"""Between SIGTERM and SIGKILL."""

_SECONDS_TO_DIE = 5.0  # after SIGKILL: a process that waits for a disk dies later
_SECONDS_TO_READ = 1.0  # what a process that has ended left in its pipe
_CHUNK = 1 << 16


class EndedProcess(NamedTuple):
    """A process that has ended.

    exit_reason: "signal 9" or "exit code 1"; of a lost process, a description. last_lines: of its output.
    is_lost: True if it has not ended by itself: its host has gone, or could not start it.
    """

    name: str
    exit_reason: str
    last_lines: tuple[str, ...]
    is_lost: bool = False

    @property
    def exit_status(self) -> int:
        """Exit status as a shell has it: 128 and the signal's number where a signal ended it."""
        kind, _, number = self.exit_reason.rpartition(" ")
        return int(number) + (128 if kind == "signal" else 0)


@dataclass
class _Supervised:
    process: subprocess.Popen[bytes]
    log: ProcessLog
    reader: threading.Thread

    @property
    def has_ended(self) -> bool:
        """True if the process has ended, without reaping it: until then no other process gets its number."""
        if self.process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # the program that this is part of reaps whatever ends
            return True

    def signal(self, number: int) -> None:
        """Sends a signal to its whole process group, of which it may be the only one left, or none."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def reap(self) -> None:
        """It has ended or has been sent SIGKILL; what it started in its group ends with it."""
        self.signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_SECONDS_TO_DIE)
        self.reader.join(_SECONDS_TO_READ)


class Supervisor:
    """Processes by name; they end with this object, with this process, or when `end` is called.

    logs: a folder that exists; the output of NAME goes to NAME.log there.
    shown: print the output as it comes, too, each line after the process's name.
    """

    def __init__(self, logs: Path, *, shown: bool = False) -> None:
        self.logs = logs
        self.shown = shown
        self._processes: dict[str, _Supervised] = {}
        self._finalizer = weakref.finalize(self, _end_at_exit, self._processes, os.getpid())

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts a process; one of that name has ended before.

        command: of `children.command`: the process dies with this one. environment: all of its variables.

        Raises:
            MindBatchError: it cannot be started, or its log cannot be written.
        """
        assert name not in self._processes
        path = self.logs / f"{name}.log"
        try:
            log = ProcessLog(path, name.replace("_", " ") if self.shown else None)
            process = spawn(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(environment),
            )
        except OSError as error:
            raise MindBatchError(f"{path}: {name} cannot be started: {error.strerror or error}") from error
        reader = threading.Thread(target=_read, args=(process, log), name=f"{name} output", daemon=True)
        self._processes[name] = _Supervised(process, log, reader)
        reader.start()

    @property
    def names(self) -> list[str]:
        """Names of the processes whose end has not been reported."""
        return list(self._processes)

    def process_id(self, name: str) -> int | None:
        supervised = self._processes.get(name)
        return None if supervised is None or supervised.has_ended else supervised.process.pid

    def last_lines(self, name: str) -> tuple[str, ...]:
        """Returns the last lines that a process printed; none once its end has been reported."""
        supervised = self._processes.get(name)
        return () if supervised is None else supervised.log.last_lines()

    def ended(self) -> list[EndedProcess]:
        """Lists the processes that have ended by themselves, each once; ends what is left of their groups."""
        names = [name for name, supervised in self._processes.items() if supervised.has_ended]
        return [_reaped(name, self._processes.pop(name)) for name in names]

    def end(self, names: Collection[str] | None = None) -> None:
        """Ends processes, or all: SIGTERM, and SIGKILL after two seconds, also for stopped ones.

        They are gone when it returns; it may be called again. Ctrl-C waits meanwhile.
        """
        chosen = self._processes if names is None else names
        ending = [process for name in list(chosen) if (process := self._processes.get(name)) is not None]
        with interruptible():
            _end(ending)
            for name in list(chosen):
                self._processes.pop(name, None)


def _reaped(name: str, supervised: _Supervised) -> EndedProcess:
    supervised.reap()
    code = supervised.process.returncode
    exit_reason = f"signal {-code}" if code < 0 else f"exit code {code}"
    return EndedProcess(name, exit_reason, supervised.log.last_lines())


def _end(processes: Collection[_Supervised]) -> None:
    for process in processes:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)  # a stopped process takes no other signal before
    _wait(processes, SECONDS_TO_END)
    for process in processes:
        process.signal(signal.SIGKILL)
    for process in processes:
        process.reap()


def _wait(processes: Iterable[_Supervised], seconds: float) -> None:
    """Waits until all have ended, or so many seconds."""
    deadline = time.monotonic() + seconds
    for process in processes:
        if not process.has_ended:
            end, waiting = os.pidfd_open(process.process.pid), select.poll()
            waiting.register(end, select.POLLIN)
            try:
                waiting.poll(1000 * max(0.0, deadline - time.monotonic()))
            finally:
                os.close(end)


def _end_at_exit(processes: dict[str, _Supervised], owner: int) -> None:
    """Ends all; in a forked process they stay the parent's."""
    if os.getpid() == owner:
        _end(list(processes.values()))


def _read(process: subprocess.Popen[bytes], log: ProcessLog) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, DEFERRED_SIGNALS)  # these are the main thread's business
    assert process.stdout is not None
    with process.stdout as stream:
        while chunk := os.read(stream.fileno(), _CHUNK):
            log.write(chunk)
    log.close()
