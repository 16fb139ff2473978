"""Running a foreign program without a shell: bounded in time and output, and nothing of it is left."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

MOST_OUTPUT = 64 << 10
_CHUNK = 8192


@dataclass(frozen=True)
class Finished:
    """How the program ended, and the beginning of what it wrote to standard output and standard error."""

    code: int
    output: str


def run_bounded(command: Sequence[str], seconds: float) -> Finished:
    """Runs `command` in a process group of its own, which is killed when the time is up.

    Raises TimeoutError, or OSError when the program cannot be started. Output beyond MOST_OUTPUT is an end,
    too: the program is killed and its code is that of the signal.
    """
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + seconds
        output = _read(process, deadline)
        if len(output) < MOST_OUTPUT:
            process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    finally:
        _end(process)
    return Finished(process.returncode, output.decode(errors="replace"))


def _read(process: "subprocess.Popen[bytes]", deadline: float) -> bytes:
    """What the program writes until it ends or there is too much of it."""
    assert process.stdout is not None
    output = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(output) < MOST_OUTPUT:
            if not selector.select(max(deadline - time.monotonic(), 0)):
                raise TimeoutError
            chunk = os.read(process.stdout.fileno(), _CHUNK)
            if not chunk:
                break
            output += chunk
    return output


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kills whatever is left of the process group, children of the program too."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
