"""Processes of a job, the node of each and what each is told: plain data, nothing is started here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from mindbatch.io import children
from mindbatch.launch.rank_environment import RankEnvironment, ReplicaWorld
from mindbatch.parallel.topology import Topology


def program_command(program: Sequence[str], folder: Path | None = None) -> list[str]:
    """The command, for `children.spawn`, that becomes a program; its arguments arrive as they are.

    folder: that it runs in; None is this process's.

    The kernel kills the program when this process ends. What the program starts has to see to that itself.
    """
    return children.command(become, str(folder or Path.cwd()), *program)


def become(folder: str, *program: str) -> NoReturn:
    """Goes on as the program, which is looked up in PATH. Raises OSError where there is none."""
    os.chdir(folder)
    os.execvp(program[0], program)


Address = tuple[str, int]
RANK, SCHEDULER = "rank", "scheduler"

CLUSTER_VARIABLES = (
    *("MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_WORKER_NUM", "MS_NODE_ID"),
    *("RANK_ID", "RANK_SIZE", "RANK_TABLE_FILE", "DEVICE_ID"),
)
"""Variables of this process's launcher that are not for the ranks: their world is another."""
_MPI_PREFIXES = ("OMPI_", "PMIX_")
_CLUSTER_PREFIXES = (*_MPI_PREFIXES, "PMI_", "MINDBATCH_")


@dataclass(frozen=True)
class ProcessSpec:
    """A process to start.

    name: `rank_3`, or `scheduler_1` of replica 1; its log is called so. role: RANK or SCHEDULER, which says
    what the process runs. rank: global; that of the replica's first where it is the scheduler.
    variables: its environment, beside what it inherits.
    """

    name: str
    role: str
    replica: int
    rank: int
    variables: Mapping[str, str]

    @property
    def is_rank(self) -> bool:
        return self.role == RANK


@dataclass(frozen=True)
class NodeLayout:
    """Ranks dealt to nodes: node k has the k-th block of `local_size` neighbours. The front is on node 0.

    Raises:
        ValueError: the nodes are not full, or hold parts of replicas of different sizes.
    """

    topology: Topology
    local_size: int

    def __post_init__(self) -> None:
        if self.topology.world_size % self.local_size:
            raise ValueError(f"{self.topology.world_size} ranks on nodes of {self.local_size}")

    @property
    def num_nodes(self) -> int:
        return self.topology.world_size // self.local_size

    def ranks_of(self, node: int) -> range:
        """The global ranks of a node."""
        return range(node * self.local_size, (node + 1) * self.local_size)

    def node_of(self, rank: int) -> int:
        """The node of a global rank."""
        return rank // self.local_size


@dataclass(frozen=True)
class JobPlan:
    """Settings that the processes of a job are started with.

    front: where the ranks find the coordinating process. key: see `RankEnvironment`.
    scheduler_host: the address of node 0, where the schedulers of all replicas run.
    device_of: the number of a global rank's device on its node.
    has_schedulers: whether the ranks of a replica find each other by MindSpore's scheduler; those with a rank
    table on NPUs do not need one, nor do those that form no MindSpore world.
    """

    layout: NodeLayout
    front: Address
    key: bytes
    scheduler_host: str
    device_of: Callable[[int], int]
    has_schedulers: bool = True

    @property
    def topology(self) -> Topology:
        return self.layout.topology

    def replica(self, replica: int, attempt: int, scheduler_port: int) -> list[ProcessSpec]:
        """The processes of one replica, its scheduler first; a replica of one rank has none.

        scheduler_port: free on node 0, and another one for each attempt.
        """
        scheduler = (self.scheduler_host, scheduler_port)
        specs = [self._rank(rank, attempt, scheduler) for rank in self.topology.ranks_of(replica)]
        if not self.needs_ports:
            return specs
        world = ReplicaWorld(scheduler, self.topology.replica_size, role="MS_SCHED")
        first = self.topology.ranks_of(replica).start
        return [ProcessSpec(f"scheduler_{replica}", SCHEDULER, replica, first, world.variables()), *specs]

    @property
    def needs_ports(self) -> bool:
        """True if each replica has a scheduler."""
        return self.has_schedulers and self.topology.replica_size > 1

    def _rank(self, rank: int, attempt: int, scheduler: Address) -> ProcessSpec:
        topology = self.topology
        replica, local_rank = divmod(rank, topology.replica_size)
        variables = RankEnvironment(self.front, self.key, rank, attempt).variables()
        if self.needs_ports:
            variables |= ReplicaWorld(scheduler, topology.replica_size, local_rank).variables()
        variables |= {"RANK_ID": str(local_rank), "RANK_SIZE": str(topology.replica_size)}
        variables["DEVICE_ID"] = str(self.device_of(rank))
        return ProcessSpec(f"rank_{rank}", RANK, replica, rank, variables)


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process that the job's processes get, too: without those of a launcher."""
    return {
        name: text
        for name, text in environment.items()
        if name not in CLUSTER_VARIABLES and not name.startswith(_CLUSTER_PREFIXES)
    }


def place_in_mpi(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which mpirun has given this process its place in a world of MPI."""
    mpi_variables = {name: text for name, text in environment.items() if name.startswith(_MPI_PREFIXES)}
    return {
        "OMPI_MCA_opal_signal": ""
    } | mpi_variables  # no backtrace of Open MPI's where a signal ends a rank
