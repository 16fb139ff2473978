"""Plan of the processes of a job: the node of each, and its environment, which it reads back itself."""

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from mindbatch.io.errors import ConfigError
from mindbatch.io.screen_text import hide
from mindbatch.launch.launcher_environment import Address, LauncherEnvironment, Rendezvous
from mindbatch.launch.rank_table import RankTable
from mindbatch.parallel.topology import Topology

KEY_BYTES = 32
JOB_KEY = "MINDBATCH_JOB_KEY"  # a variable, as those below
HIDDEN = "(hidden)"
_COORDINATOR, _RANK, _ATTEMPT = "MINDBATCH_COORDINATOR", "MINDBATCH_RANK", "MINDBATCH_ATTEMPT"
_KEY = re.compile(rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}")
_REMEDY = "export MINDBATCH_JOB_KEY=$(openssl rand -hex 32) once, and give it to every node"


def job_key(environment: Mapping[str, str], *, is_shared: bool) -> bytes:
    """Reads or draws the key of a job, which is never on a command line, in a file of a run, or in a message.

    is_shared: True if there are other nodes, which must have the same; a job on one node draws its own.

    Raises:
        ConfigError: a shared one is not set, or it is no key.
    """
    if not is_shared:
        return secrets.token_bytes(KEY_BYTES)
    text = environment.get(JOB_KEY, "")
    if text:
        hide(text, HIDDEN)
    if not _KEY.fullmatch(text):
        problem = "is not a key" if text else "is not set"
        raise ConfigError(
            f"{JOB_KEY} {problem}: the nodes of a job know each other by {2 * KEY_BYTES} hexadecimal digits "
            f"that nobody else has; {_REMEDY}"
        )
    return bytes.fromhex(text)


@dataclass(frozen=True)
class RankEnvironment:
    """Bootstrap settings of a rank process; it gets all others once it is connected.

    coordinator: address of the process that coordinates the job.
    key: of the job, 32 random bytes; whoever has it may take part. On no command line and in no log.
    rank: among all of the job.
    attempt: how often the rank's replica was started before.
    """

    coordinator: Address
    key: bytes
    rank: int
    attempt: int = 0

    def variables(self) -> dict[str, str]:
        host, port = self.coordinator
        return {
            _COORDINATOR: f"{host}:{port}",
            JOB_KEY: self.key.hex(),
            _RANK: str(self.rank),
            _ATTEMPT: str(self.attempt),
        }


def world_variables(scheduler: Address, size: int, rank: int | None = None) -> dict[str, str]:
    """MindSpore's variables of its dynamic cluster, the world of one replica; a replica of one rank has none.

    scheduler: where the replica's scheduler process listens. size: its ranks.
    rank: local to the replica; None is the scheduler process, which is none of the ranks.
    """
    host, port = scheduler
    return {
        "MS_ROLE": "MS_SCHED" if rank is None else "MS_WORKER",
        "MS_SCHED_HOST": host,
        "MS_SCHED_PORT": str(port),
        "MS_WORKER_NUM": str(size),
        "MS_NODE_ID": "sched" if rank is None else str(rank),
        "RANK_ID": str(rank or 0),
        "RANK_SIZE": str(size),
    }


def take_rank_environment(variables: Mapping[str, str] | None = None) -> RankEnvironment:
    """Reads the settings and deletes the key from the process's own environment: its children need none.

    Raises:
        ConfigError: it was not started as a rank of a job.
    """
    source = os.environ if variables is None else variables
    try:
        host, _, port = source[_COORDINATOR].rpartition(":")
        key = bytes.fromhex(source[JOB_KEY])
        rank_environment = RankEnvironment(
            (host, int(port)), key, int(source[_RANK]), int(source.get(_ATTEMPT, "0"))
        )
    except (KeyError, ValueError):
        raise ConfigError(
            "this is a process of a MindBatch job and cannot be started alone: give `mindbatch` "
            "parallel.data_parallel and the like, and it starts the processes"
        ) from None
    if len(key) != KEY_BYTES or rank_environment.rank < 0:
        raise ConfigError(f"{JOB_KEY}: must be {KEY_BYTES} bytes, {_RANK} at least 0")
    if variables is None:
        del os.environ[JOB_KEY]
    return rank_environment


LOCAL_HOST = "127.0.0.1"
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
class JobSetup:
    """A job as one of its nodes sees it. `preflight.set_up` validates it: nothing of it is refused later.

    local_size: ranks of each node. Node k has the k-th block of neighbours; the coordinator is on node 0.
    node: this one. rendezvous: address at which the coordinator waits for the other nodes; port 0 where there
    are none, or the coordinator chooses one (see `Rendezvous`). is_on_one_host: True if all nodes are copies
    of the command on this host. key: see `RankEnvironment`. copy: the launcher's environment of this process.
    ray_address: of a running Ray cluster; None starts one on this host for the job.
    copy_rendezvous: of the copies, if all are on this host.
    joins_mpi: each rank joins the world of MPI of the copies that mpirun has started, with its copy's rank.
    has_worlds: the ranks of each replica form a MindSpore world.
    coordinator: address at which the ranks find it; the schedulers of all replicas run on its host.
    has_schedulers: True if the ranks find each other by MindSpore's scheduler; those with a rank table on
    NPUs do not need one.
    """

    topology: Topology
    local_size: int
    node: int = 0
    rendezvous: Address = (LOCAL_HOST, 0)
    is_on_one_host: bool = False
    key: bytes = b""
    launcher: str = "dynamic"
    table: RankTable | None = None
    copy: LauncherEnvironment | None = None
    ray_address: str | None = None
    copy_rendezvous: Rendezvous | None = None
    joins_mpi: bool = False
    has_worlds: bool = True
    coordinator: Address = (LOCAL_HOST, 0)
    has_schedulers: bool = True

    @property
    def num_nodes(self) -> int:
        return self.topology.world_size // self.local_size

    def ranks_of(self, node: int) -> range:
        return range(node * self.local_size, (node + 1) * self.local_size)

    @property
    def ranks(self) -> range:
        return self.ranks_of(self.node)

    @property
    def is_coordinator(self) -> bool:
        return self.node == 0

    @property
    def table_digest(self) -> str:
        """Digest of the rank table, which must be the same on all nodes; empty without one."""
        return "" if self.table is None else self.table.digest

    @property
    def device_offset(self) -> int:
        """Counts the devices of this host that earlier copies use; 0 with a rank table, which names them."""
        if self.table is not None or self.copy is None:
            return 0
        if self.copy.device_id is not None:
            return self.copy.device_id
        return self.copy.local_rank * self.local_size

    def device_of(self, rank: int) -> int:
        """Finds the device of a global rank: that of the rank table, else they are numbered on each node.

        A process that Ray has found a device for sees no other.
        """
        if self.launcher == "ray":
            return 0
        if self.table is None:
            offset = self.device_offset if rank in self.ranks else 0  # an agent adds that of its own
            return offset + rank % self.local_size
        return {
            device.rank_id: device.device_id for server in self.table.servers for device in server.devices
        }[rank]

    @property
    def needs_ports(self) -> bool:
        return self.has_schedulers and self.topology.replica_size > 1

    def specs(self, replica: int, attempt: int, scheduler_port: int) -> list[ProcessSpec]:
        """Plans the processes of one replica, its scheduler first; a replica of one rank has none.

        scheduler_port: free on node 0, and another one for each attempt.
        """
        scheduler = (self.coordinator[0], scheduler_port)
        ranks = self.topology.ranks_of(replica)
        specs = [self._spec(rank, attempt, scheduler) for rank in ranks]
        if not self.needs_ports:
            return specs
        world = world_variables(scheduler, len(ranks))
        return [ProcessSpec(f"scheduler_{replica}", SCHEDULER, replica, ranks.start, world), *specs]

    def _spec(self, rank: int, attempt: int, scheduler: Address) -> ProcessSpec:
        size = self.topology.replica_size
        replica, local_rank = divmod(rank, size)
        variables = RankEnvironment(self.coordinator, self.key, rank, attempt).variables()
        if self.needs_ports:
            variables |= world_variables(scheduler, size, local_rank)
        variables |= {"RANK_ID": str(local_rank), "RANK_SIZE": str(size)}
        variables["DEVICE_ID"] = str(self.device_of(rank))
        return ProcessSpec(f"rank_{rank}", RANK, replica, rank, variables)


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Selects the variables of this process for the job's processes: all but those of a launcher."""
    return {
        name: text
        for name, text in environment.items()
        if name not in CLUSTER_VARIABLES and not name.startswith(_CLUSTER_PREFIXES)
    }


def mpi_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Selects the variables by which mpirun identifies this process in a world of MPI."""
    mpi_variables = {name: text for name, text in environment.items() if name.startswith(_MPI_PREFIXES)}
    return {
        "OMPI_MCA_opal_signal": ""
    } | mpi_variables  # no backtrace of Open MPI's where a signal ends a rank
