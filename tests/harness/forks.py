"""Forked children of a small process: a session starts at once, and may be killed wherever it is."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

FAILED = 70


@dataclass(frozen=True)
class Ending:
    """How a child ended: its exit code, negative for the signal that killed it; and the lines it sent."""

    code: int
    lines: tuple[str, ...]

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.code == -signal.SIGKILL


Send = Callable[[str], None]


def run_forked(session: Callable[[Send], object], kill_after: float | None = None) -> Ending:
    """Runs `session` in a child, which may send lines that arrive even if it dies right after.

    kill_after: seconds until the child is killed, if it is still there.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_and_exit(session, writing)
    os.close(writing)
    try:
        text = _read_until_end(child, reading, kill_after)
    finally:
        os.close(reading)
        _, status = os.waitpid(child, 0)
    return Ending(os.waitstatus_to_exitcode(status), tuple(text.decode().splitlines()))


def _run_and_exit(session: Callable[[Send], object], writing: int) -> None:
    """Never returns: what stands above the fork belongs to the parent."""
    code = FAILED
    try:
        session(lambda line: _send(writing, line))
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _send(writing: int, line: str) -> None:
    data = line.encode() + b"\n"
    while data:
        data = data[os.write(writing, data) :]


def _read_until_end(child: int, reading: int, kill_after: float | None) -> bytes:
    """All that the child sends until it ends; it is killed when its time is over."""
    poll = select.poll()
    poll.register(reading, select.POLLIN | select.POLLHUP)
    end = None if kill_after is None else time.monotonic() + kill_after
    chunks = []
    while True:
        left = None if end is None else max(0.0, end - time.monotonic()) * 1000
        if not poll.poll(left):
            os.kill(child, signal.SIGKILL)
            end = None
            continue
        chunk = os.read(reading, 65536)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
