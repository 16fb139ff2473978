"""`mindbatch retry`: the rows of a run that failed, once more."""

from __future__ import annotations

from mindbatch.config.schema import RetryConfig
from mindbatch.tasks.batch import job_of


def run(config: RetryConfig) -> int:
    """Runs the task; returns the exit code: failed when any row still has no result."""
    return job_of(config, retry=True).run()
