"""Runs MindSpore's transform_checkpoints for the reshard benchmark; prints seconds and peak memory in bytes.

Arguments: SOURCE TARGET STRATEGY PROCESSES. SOURCE holds rank_0/*.ckpt; TARGET gets rank_N/checkpoint_N.ckpt.
The seconds are of the call alone, without the start of Python and MindSpore.
"""

from __future__ import annotations

import sys
import time

from bench.process_memory import PeakMemory


def main() -> None:
    """Runs it and watches this process and its children meanwhile."""
    source, target, strategy, processes = sys.argv[1:]
    with PeakMemory() as memory:
        import mindspore

        start = time.perf_counter()
        mindspore.transform_checkpoints(
            source, target, "checkpoint_", None, strategy, process_num=int(processes)
        )
        seconds = time.perf_counter() - start
    print(seconds, memory.peak)
