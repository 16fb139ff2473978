"""Rank processes on this machine: started, watched and ended by this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mindbatch.launch.ranks import EndedRank
from mindbatch.launch.supervisor import Supervisor


class LocalRanks:
    """The ranks of a job, each in a session of its own with its log `rank_N.log`; they end with this object.

    command: of a rank process. environment_of: (rank, attempt) -> its variables, beside this process's own.
    replica_size: ranks of a replica, which are neighbours. logs: a folder that exists.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment_of: Callable[[int, int], dict[str, str]],
        world_size: int,
        replica_size: int,
        logs: Path,
    ) -> None:
        """Starts all. Raises MindBatchError where a process cannot be started."""
        self._command = list(command)
        self._environment_of = environment_of
        self._replica_size = replica_size
        self._supervisor = Supervisor(logs)
        try:
            self._start(range(world_size), 0)
        except BaseException:
            self.end()
            raise

    def ended(self) -> list[EndedRank]:
        """See `Ranks.ended`."""
        return [
            EndedRank(int(name.removeprefix("rank_")), how, last_lines)
            for name, how, last_lines in self._supervisor.ended()
        ]

    def restart(self, replica: int, attempt: int) -> None:
        """See `Ranks.restart`."""
        ranks = range(replica * self._replica_size, (replica + 1) * self._replica_size)
        self._supervisor.end([f"rank_{rank}" for rank in ranks])
        self._start(ranks, attempt)

    def end(self) -> None:
        """See `Ranks.end`."""
        self._supervisor.end()

    def _start(self, ranks: range, attempt: int) -> None:
        for rank in ranks:
            environment = {**os.environ, **self._environment_of(rank, attempt)}
            self._supervisor.start(f"rank_{rank}", self._command, environment)
