"""The processes of a job on this machine, started by this process."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from mindbatch.launch.process_log import replica_table
from mindbatch.launch.process_plan import ProcessSpec, inherited, place_in_mpi
from mindbatch.launch.supervisor import EndedProcess, Supervisor


class LocalProcesses:
    """Starts and ends processes by name; see `Supervisor`.

    commands: by role, of `children.command`. logs: a folder that exists.
    has_tables: whether the rank table of each replica is there, too. joins_mpi: see `Job`.
    """

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        logs: Path,
        *,
        has_tables: bool = False,
        joins_mpi: bool = False,
        shown: bool = False,
    ) -> None:
        self._commands, self._logs, self._has_tables = commands, logs, has_tables
        self._joins_mpi = joins_mpi
        self._supervisor = Supervisor(logs, shown=shown)

    def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Starts processes; none of these names is there. Raises MindBatchError where one cannot be."""
        environment = inherited(os.environ) | (place_in_mpi(os.environ) if self._joins_mpi else {})
        for spec in specs:
            variables = {**environment, **spec.variables, **self._table_of(spec)}
            self._supervisor.start(spec.name, self._commands[spec.role], variables)

    def ended(self) -> list[EndedProcess]:
        """Lists processes that have ended by themselves, each once."""
        return self._supervisor.ended()

    def end(self, names: Collection[str] | None = None) -> None:
        """Ends some, or all; they are gone when it returns."""
        self._supervisor.end(names)

    def process_id(self, name: str) -> int | None:
        """Looks up a process's id; None if it has ended."""
        return self._supervisor.process_id(name)

    def last_lines(self, name: str) -> tuple[str, ...]:
        return self._supervisor.last_lines(name)

    def begin_close(self) -> None:
        """Nothing: they are ended together, and soon."""

    def close(self) -> None:
        """Ends all processes."""
        self._supervisor.end()

    def _table_of(self, spec: ProcessSpec) -> dict[str, str]:
        if not self._has_tables or not spec.is_rank:
            return {}
        return {"RANK_TABLE_FILE": str(replica_table(self._logs, spec.replica))}
