"""Rendezvous of a replica's ranks: in memory that they share, through MPI, or in a MindSpore world."""

import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from queue import SimpleQueue

from mindbatch.config.installed import is_installed, missing
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.io.errors import ConfigError
from mindbatch.kernels.native_library import find_library, library_text
from mindbatch.launch.process_plan import JobSetup
from mindbatch.replicas.connection import Address, JobListener, MessageConnection, MessageError, connect

FOLLOWER = "follower"
"""The first message on such a connection: the local rank that follows."""


def accept_followers(
    host: str, key: bytes, ranks: Collection[int], announce: Callable[[Address], object]
) -> dict[int, MessageConnection]:
    """Listens until every one of the local ranks has connected; the connections by rank.

    announce: is told where they find this process.
    """
    arrived: SimpleQueue[tuple[int, MessageConnection]] = SimpleQueue()

    def take(connection: MessageConnection) -> None:
        with suppress(EOFError, OSError, MessageError):
            first = connection.receive()
            if first.kind == FOLLOWER and first.fields.get("rank") in ranks:
                arrived.put((first.fields["rank"], connection))
                return
        connection.close()

    listener = JobListener(host, key, take)
    try:
        announce(listener.address)
        connections: dict[int, MessageConnection] = {}
        while len(connections) < len(ranks):
            rank, connection = arrived.get()
            connections[rank] = connection
        return connections
    finally:
        listener.close()


def connect_to_leader(address: Address, key: bytes, rank: int) -> MessageConnection:
    """The connection of a local rank to the leader of its replica. OSError if nobody of the job listens."""
    connection = connect(address, key)
    connection.send(FOLLOWER, rank=rank)
    return connection


def own_address(towards: Address) -> str:
    """The address of this host that others reach it by, as far as one goes that leads to another process."""
    family = socket.AF_INET6 if ":" in towards[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect(towards)
        return str(probe.getsockname()[0])


def shares_memory(job: JobSetup) -> bool:
    """True if the ranks of each replica are on one host."""
    is_one_host = job.num_nodes == 1 or job.is_on_one_host
    if job.launcher == "ray":  # in a cluster that was there none is placed yet
        return is_one_host and job.ray_address is None
    return is_one_host or job.local_size % job.topology.replica_size == 0


def needs_world(job: JobSetup, model: ModelConfig, runtime: RuntimeConfig) -> bool:
    """True if the ranks of each replica must form a MindSpore world, which takes seconds.

    The C++ kernels of a CPU need none: those do all that ranks do together. MindFormers' networks ask
    MindSpore for their groups, whatever computes.
    """
    if job.topology.replica_size == 1:
        return False
    return runtime.device_target != "CPU" or model.provider != "native"


def joins_mpi(job: JobSetup, model: ModelConfig, runtime: RuntimeConfig) -> bool:
    """True if ranks of a replica on several hosts join through MPI: mpirun has started a copy for each."""
    if shares_memory(job) or needs_world(job, model, runtime):
        return False
    copy = job.copy
    if copy is None or copy.launcher != "mpirun" or job.launcher != "dynamic":
        return False
    return job.local_size == 1 and job.node == copy.rank


def refuse_apart(job: JobSetup, model: ModelConfig, runtime: RuntimeConfig, max_restarts: int = 0) -> None:
    """Refuses ranks of a replica that would have nothing to meet in.

    Raises:
        ConfigError: they are on several hosts and not in MPI, or there are no C++ kernels.
    """
    topology = job.topology
    if topology.replica_size == 1 or needs_world(job, model, runtime):
        return
    sizes = f"parallel.model_parallel={topology.model_parallel}, pipeline_stage={topology.pipeline_stage}"
    besides = (
        "parallel.data_parallel of replicas that are whole on each host (launch.local_worker_num a multiple "
        f"of {topology.replica_size}), model.quantization=int8 for a model that is smaller, and Ascend"
    )
    if not shares_memory(job) and not job.joins_mpi:
        raise ConfigError(
            f"{sizes}: on a CPU the ranks of a replica meet in the memory of one host, and here they may be "
            "on several; allowed: mpirun of Open MPI, which starts a copy of the command for each rank, and "
            f"mpi4py; {besides}"
        )
    if job.joins_mpi and not is_installed("mpi4py"):
        raise ConfigError(
            f"{sizes}: ranks on several hosts meet through mpi4py, beside Open MPI; {missing('mpi4py')}; "
            f"allowed without it: {besides}"
        )
    if job.joins_mpi and max_restarts:
        raise ConfigError(
            f"launch.max_restarts={max_restarts}: a process that has left MPI cannot join it again; allowed "
            "with ranks of a replica on several hosts: 0"
        )
    if find_library() is None:
        raise ConfigError(f"parallel.model_parallel, pipeline_stage: the kernels are {library_text()}")
