"""Rank processes on this machine, started by this process itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mindbatch.launch.ranks import EndedRank
from mindbatch.launch.supervisor import Supervisor


class LocalRanks:
    """The ranks of a job, each in a session of its own with its log `rank_N.log`; they end with this object.

    command: of a rank process. environment_of: (rank, attempt) -> its variables, beside this process's own.
    replica_size: ranks of a replica, which are neighbours. logs, shown: see `Supervisor`.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment_of: Callable[[int, int], dict[str, str]],
        world_size: int,
        replica_size: int,
        logs: Path,
        *,
        shown: bool = False,
    ) -> None:
        """Starts all. Raises MindBatchError where a process cannot be started."""
        self._command = list(command)
        self._environment_of = environment_of
        self._replica_size = replica_size
        self._processes = Supervisor(logs, shown=shown)
        try:
            for rank in range(world_size):
                self._start(rank, 0)
        except BaseException:
            self.end()
            raise

    def ended(self) -> list[EndedRank]:
        """See `Ranks.ended`."""
        return [EndedRank(_rank(name), how, lines) for name, how, lines in self._processes.ended()]

    def last_lines(self, rank: int) -> tuple[str, ...]:
        """See `Ranks.last_lines`."""
        return self._processes.last_lines(_name(rank))

    def restart(self, replica: int, attempt: int) -> None:
        """See `Ranks.restart`."""
        ranks = range(replica * self._replica_size, (replica + 1) * self._replica_size)
        self._processes.end([_name(rank) for rank in ranks])
        for rank in ranks:
            self._start(rank, attempt)

    def end(self) -> None:
        """See `Ranks.end`."""
        self._processes.end()

    def _start(self, rank: int, attempt: int) -> None:
        environment = {**os.environ, **self._environment_of(rank, attempt)}
        self._processes.start(_name(rank), self._command, environment)


def _name(rank: int) -> str:
    return f"rank_{rank}"


def _rank(name: str) -> int:
    return int(name.removeprefix("rank_"))
