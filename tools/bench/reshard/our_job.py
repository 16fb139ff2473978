"""Runs one reshard for the reshard benchmark; prints the peak memory of all of its processes, in bytes.

Arguments: SOURCE TARGET WAYS WORKERS [FORMAT [CONFIG_FOLDER]]
"""

from __future__ import annotations

import sys

from bench.process_memory import PeakMemory
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run


def main() -> None:
    """Runs the task and watches this process and its children meanwhile."""
    source, target, model_parallel, workers, *more = sys.argv[1:]
    config = ReshardConfig(source=source, workers=int(workers))
    config.target.dir, config.target.model_parallel = target, int(model_parallel)
    if more:
        config.target.format = more[0]
        config.source_config = more[1] if len(more) > 1 else None
    with PeakMemory() as memory:
        code = run(config)
    print(memory.peak)
    sys.exit(code)
