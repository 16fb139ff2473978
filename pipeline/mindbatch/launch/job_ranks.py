"""The rank processes of a job over all of its nodes, with the MindSpore scheduler of each replica."""

import os
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from mindbatch.launch.free_ports import HeldPort
from mindbatch.launch.process_log import replica_table
from mindbatch.launch.process_plan import JobSetup, ProcessSpec, inherited, mpi_variables
from mindbatch.launch.supervisor import EndedProcess, Supervisor


class EndedRank(NamedTuple):
    """A rank process that has ended.

    exit_reason, is_lost: see `EndedProcess`. last_lines: of its log.
    """

    rank: int
    exit_reason: str
    last_lines: tuple[str, ...] = ()
    is_lost: bool = False

    @property
    def description(self) -> str:
        """Description of its end, to stand after its name."""
        is_status = self.exit_reason.startswith(("signal ", "exit code "))
        return f"ended with {self.exit_reason}" if is_status else self.exit_reason


class NodeProcesses(Protocol):
    """The processes of a job on one node. What is not known of another machine's has defaults.

    ranks: those of an agent; see `JobRanks`.
    """

    ranks: range = range(0)

    def start_specs(self, specs: Sequence[ProcessSpec]) -> None:
        """Starts processes; raises MindBatchError where one cannot be."""
        ...

    def ended(self) -> list[EndedProcess]:
        """Lists processes that have ended by themselves, each once."""
        ...

    def process_id(self, name: str) -> int | None:
        """Looks up a process's id; None if it has ended, or is not known to be on this machine."""
        return None

    def last_lines(self, name: str) -> tuple[str, ...]:
        """Returns the last lines that a process printed; none where they come with its end only."""
        return ()

    def end(self, names: Collection[str] | None = None) -> None:
        """Ends those of some names, or all; they are gone when it returns, and `ended` tells of none."""
        ...

    def begin_close(self) -> None:
        """Asks for the end of all; does not wait."""
        return

    def close(self) -> None:
        """Ends all; they are gone when it returns. It may be called again."""
        ...


class LocalProcesses(Supervisor, NodeProcesses):
    """Those on this machine.

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
        self.commands, self._has_tables, self._joins_mpi = commands, has_tables, joins_mpi

    def start_specs(self, specs: Sequence[ProcessSpec]) -> None:
        environment = inherited(os.environ) | (mpi_variables(os.environ) if self._joins_mpi else {})
        for spec in specs:
            variables = {**environment, **spec.variables}
            if self._has_tables and spec.is_rank:
                variables["RANK_TABLE_FILE"] = str(replica_table(self.logs, spec.replica))
            self.start(spec.name, self.commands[spec.role], variables)

    def close(self) -> None:
        self.end()


class JobRanks:
    """Started rank processes, by global rank.

    nodes: the first has the schedulers, and the ranks that no other has. close: called when all have ended.
    """

    def __init__(
        self,
        job: JobSetup,
        nodes: Sequence[NodeProcesses],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts all. Raises MindBatchError where a process cannot be started; none is left then."""
        self._job, self.nodes = job, nodes
        self._ports: dict[int, HeldPort] = {}  # of the schedulers, by replica
        self._end = weakref.finalize(self, _end_all, nodes, close, self._ports, os.getpid())
        self._specs: dict[str, ProcessSpec] = {}
        self._reported: set[int] = set()
        try:
            for replica in range(job.topology.data_parallel):
                self._start(job.specs(replica, 0, self._new_port(replica)))
        except BaseException:
            self.end()
            raise

    def ended(self) -> list[EndedRank]:
        """Lists ended ranks; a scheduler that fails before its ranks stands for the first of them."""
        processes = [process for node in self.nodes for process in node.ended()]
        specs = [(self._specs[process.name], process) for process in processes if process.name in self._specs]
        ranks = [
            EndedRank(spec.rank, process.exit_reason, process.last_lines, process.is_lost)
            for spec, process in specs
            if spec.is_rank
        ]
        self._reported.update(rank.rank for rank in ranks)
        return ranks + [*self._failed_schedulers(specs)]

    def process_id(self, rank: int) -> int | None:
        spec = self._specs[f"rank_{rank}"]
        return self._node_of(spec).process_id(spec.name)

    def last_lines(self, rank: int) -> tuple[str, ...]:
        spec = self._specs[f"rank_{rank}"]
        return self._node_of(spec).last_lines(spec.name)

    def _node_of(self, spec: ProcessSpec) -> NodeProcesses:
        others = [node for node in self.nodes if spec.is_rank and spec.rank in node.ranks]
        return others[0] if others else self.nodes[0]

    def restart(self, replica: int, attempt: int) -> None:
        """Ends what is left of a replica's processes and starts them anew.

        attempt: see `RankEnvironment`.
        """
        specs = self._job.specs(replica, attempt, self._new_port(replica))
        for node in self.nodes:
            if names := [spec.name for spec in specs if self._node_of(spec) is node]:
                node.end(names)
        self._reported -= {*self._job.topology.ranks_of(replica)}
        self._start(specs)

    def end(self) -> None:
        """Ends all of them; they are gone when it returns. It may be called again."""
        self._end()

    def _new_port(self, replica: int) -> int:
        """Holds another port for the scheduler of a replica; replicas of one rank have none.

        It is held while the replica runs: else another job of this machine may be given it, too, before the
        scheduler listens there.
        """
        if not self._job.needs_ports:
            return 0
        before = self._ports.get(replica)
        self._ports[replica] = HeldPort(self._job.coordinator[0])
        if before is not None:
            before.close()
        return self._ports[replica].number

    def _start(self, specs: Iterable[ProcessSpec]) -> None:
        for spec in specs:
            self._specs[spec.name] = spec
            self._node_of(spec).start_specs([spec])

    def _failed_schedulers(self, specs: Iterable[tuple[ProcessSpec, EndedProcess]]) -> Iterable[EndedRank]:
        """Yields the schedulers that failed before their ranks; one ends by itself after its ranks."""
        for spec, process in specs:
            if spec.is_rank or process.exit_reason == "exit code 0":
                continue
            if not self._reported & {*self._job.topology.ranks_of(spec.replica)}:
                reason = f"was ended: MindSpore's scheduler of its replica ended with {process.exit_reason}"
                yield EndedRank(spec.rank, reason, process.last_lines, is_lost=True)


def _end_all(
    nodes: Sequence[NodeProcesses], close: Callable[[], None], ports: Mapping[int, HeldPort], owner: int
) -> None:
    """Ends the processes of all nodes at the same time. In a forked process they stay the parent's."""
    if os.getpid() != owner:
        return
    for node in nodes:
        node.begin_close()
    for node in nodes:
        node.close()
    for port in ports.values():
        port.close()
    close()
