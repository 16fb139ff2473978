"""State of a process of this machine, as the kernel reports it (proc(5))."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

ProcessState = Literal["running", "sleeping", "stopped"]
"""running: a thread of it computes, or waits for a processor or a disk. stopped: by a signal or a tracer."""

_BUSY = {"R", "D"}
_STOPPED = {"T", "t"}


def process_state(process: int) -> ProcessState | None:
    """The state of a process; None when there is none any more."""
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
