"""`mindbatch retry`: the rows of a run that failed, once more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mindbatch.run.batch_config import BatchConfig


@dataclass
class RetryConfig(BatchConfig):
    """The keys of `mindbatch retry`."""

    continues_run: ClassVar[bool] = True
    advises_sampling: ClassVar[bool] = False


def run(config: RetryConfig) -> int:
    """Runs the task; returns the exit code: failed when any row still has no result."""
    from mindbatch.tasks.batch import job_of  # the engine: not needed for the keys

    return job_of(config, retry=True).run()
