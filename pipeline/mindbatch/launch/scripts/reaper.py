"""Runs a program of the user's so that all its descendants end with it, and all of them with its starter.

Run as a child process of its own (`children.command`) from the standard library alone.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

SECONDS_TO_END = 1.0
"""Between SIGTERM and SIGKILL for the program; less than a supervisor leaves to this process."""

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_AWAITED = {signal.SIGTERM, signal.SIGCHLD}
_NO_SUCH_PROGRAM = 127


def run_and_reap(*program: str) -> NoReturn:
    """Runs the program and ends as it does, when nothing is left of what it has started.

    SIGTERM, which the kernel sends too when the parent ends, is handed on to the program.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    parent = os.getppid()
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_CHILD_SUBREAPER, 1)  # what loses its parent becomes a child of this process
    libc.prctl(_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)

    def before_the_program() -> None:
        libc.prctl(_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)

    try:
        process = subprocess.Popen(program, preexec_fn=before_the_program)
    except OSError as error:
        print(f"{ascii(program[0])}: {error.strerror}", file=sys.stderr)
        sys.exit(_NO_SUCH_PROGRAM)
    _wait(process)
    end_descendants()
    _end_alike(process.returncode if process.returncode is not None else -signal.SIGKILL)


def _wait(process: "subprocess.Popen[bytes]") -> None:
    """Waits until the program has ended, or its time after SIGTERM has; reaps others that end meanwhile."""
    deadline: float | None = None
    while process.poll() is None:
        if deadline is None:
            came = signal.sigwait(_AWAITED)
        elif (left := deadline - time.monotonic()) <= 0:
            return
        else:
            info = signal.sigtimedwait(_AWAITED, left)
            came = signal.SIGCHLD if info is None else signal.Signals(info.si_signo)
        if came == signal.SIGTERM and deadline is None:
            deadline = time.monotonic() + SECONDS_TO_END
            process.terminate()
        _reap_strangers(process.pid)


def _reap_strangers(program: int) -> None:
    """Reaps the ended children that the program has left to this process."""
    for child in children_of(os.getpid()):
        if child != program:
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def end_descendants() -> None:
    """Kills all children, and those that these leave, until there are none; whatever sessions they are in."""
    while children := [*children_of(os.getpid())]:
        for child in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def children_of(process: int) -> Iterator[int]:
    """Lists the children of a process, as proc(5) has them."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[1]) == process:
                    yield int(entry.name)


def _end_alike(code: int) -> NoReturn:
    """Ends with the exit code of the program, or by the signal that ended it (a negative one)."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL needs no handler, and takes none
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    sys.exit(code if code >= 0 else 128 - code)
