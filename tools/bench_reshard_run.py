"""One reshard for bench_reshard.py: prints the highest memory of all of its processes together, in bytes.

python tools/bench_reshard_run.py SOURCE TARGET WAYS WORKERS
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import checkout  # noqa: F401
from mindbatch.config.schema import ReshardConfig
from mindbatch.tasks.reshard import run

PERIOD = 0.02


def main() -> None:
    """Runs the task and watches this process and its children meanwhile."""
    source, target, ways, workers = sys.argv[1:]
    config = ReshardConfig(source=source, workers=int(workers))
    config.target.dir, config.target.model_parallel = target, int(ways)
    peak, ended = [0], threading.Event()
    watcher = threading.Thread(target=watch, args=(peak, ended))
    watcher.start()
    code = run(config)
    ended.set()
    watcher.join()
    print(peak[0])
    sys.exit(code)


def watch(peak: list[int], ended: threading.Event) -> None:
    """Keeps the highest sum in `peak`."""
    while not ended.wait(PERIOD):
        peak[0] = max(peak[0], sum(map(resident, [os.getpid(), *children()])))


def children() -> list[int]:
    """The children of all threads of this process."""
    found: list[int] = []
    for file in Path("/proc/self/task").glob("*/children"):
        found += map(int, file.read_text().split())
    return found


def resident(process: int) -> int:
    """Bytes of memory that a process has; 0 when it has gone."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
