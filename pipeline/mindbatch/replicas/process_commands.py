"""Commands that the processes of a job run, by role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mindbatch.io.children import command
from mindbatch.launch.process_plan import RANK, SCHEDULER
from mindbatch.parallel import scheduler_process
from mindbatch.replicas import rank_main


def process_commands() -> Mapping[str, Sequence[str]]:
    """Commands of `children.command`."""
    return {RANK: command(rank_main.main), SCHEDULER: command(scheduler_process.main)}
