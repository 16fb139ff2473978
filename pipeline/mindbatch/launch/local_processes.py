"""The processes of a job on this machine, started by this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mindbatch.launch.process_log import replica_table
from mindbatch.launch.process_plan import ProcessSpec, inherited, place_in_mpi
from mindbatch.launch.supervisor import Supervisor


class LocalProcesses(Supervisor):
    """A supervisor that starts processes of a job (see `NodeProcesses`).

    commands: by role, of `children.command`. logs: a folder that exists.
    has_tables: whether the rank table of each replica is there, too. joins_mpi: see `JobSetup`.
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
        super().__init__(logs, shown=shown)
        self._commands, self._has_tables, self._joins_mpi = commands, has_tables, joins_mpi

    def start_specs(self, specs: Sequence[ProcessSpec]) -> None:
        """Starts processes; none of these names is there. Raises MindBatchError where one cannot be."""
        environment = inherited(os.environ) | (place_in_mpi(os.environ) if self._joins_mpi else {})
        for spec in specs:
            variables = {**environment, **spec.variables, **self._table_of(spec)}
            self.start(spec.name, self._commands[spec.role], variables)

    def begin_close(self) -> None:
        """Nothing: they are ended together, and soon."""

    def close(self) -> None:
        self.end()

    def _table_of(self, spec: ProcessSpec) -> dict[str, str]:
        if not self._has_tables or not spec.is_rank:
            return {}
        return {"RANK_TABLE_FILE": str(replica_table(self._logs, spec.replica))}
