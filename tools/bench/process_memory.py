"""Memory of this process, and the highest memory of a process and all of its descendants together."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from types import TracebackType

PERIOD = 0.02


class PeakMemory:
    """Within `with`, watches this process and all that descend from it.

    peak: bytes, the highest sum of their resident sizes, looked at 50 times a second. What processes share
    counts once for each. It is never below what the system notes as the peak of any single one.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self) -> PeakMemory:
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._watcher.join()
        # Of this process itself, getrusage also tells what the one had that started it.
        children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        self.peak = max(self.peak, memory_bytes("VmHWM"), children)

    def _watch(self) -> None:
        while not self._ended.wait(PERIOD):
            self.peak = max(self.peak, sum(map(resident, family(os.getpid()))))


def memory_bytes(field: str) -> int:
    """Reads a field of /proc/self/status in bytes: VmRSS now, VmHWM at its highest."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) * 1024


def family(process: int) -> list[int]:
    """A process and all that descend from it."""
    members = [process]
    for parent in members:  # grows meanwhile
        for file in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                members += map(int, file.read_text().split())
            except OSError:  # it has gone
                continue
    return members


def resident(process: int) -> int:
    """Bytes of memory that a process has; 0 when it has gone."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
