"""Checks a job's setup before any process is started, and reports all errors at once."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from mindbatch.config.launch_schema import LaunchConfig, user_key
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.io.installation import is_installed, missing
from mindbatch.kernels.native_library import find_library, library_text
from mindbatch.launch.free_ports import port_error
from mindbatch.launch.launcher_environment import (
    LauncherEnvironment,
    Rendezvous,
    launcher_environment,
    port_of,
)
from mindbatch.launch.process_plan import LOCAL_HOST, JobSetup, job_key
from mindbatch.launch.rank_table import RankTable, counted
from mindbatch.launch.table_reader import AllowedDeviations, read_rank_table
from mindbatch.parallel.topology import Topology

Found = TypeVar("Found")


def set_up(launch: LaunchConfig, topology: Topology, environment: Mapping[str, str]) -> JobSetup:
    """Resolves the section `launch` on this machine.

    environment: the variables of this process, by which launchers tell which copy it is.

    Raises:
        ConfigError: with every error.
    """
    collected = _Collected()
    copy = collected.of(lambda: launcher_environment(environment))
    knows_copy = not collected.errors
    table = None if launch.rank_table is None else collected.of(lambda: _table(launch, topology))
    is_here = collected.of(lambda: _is_on_one_host(copy)) if knows_copy else None
    job = None
    if is_here is not None:
        draft = _draft(launch, topology, copy, table)
        job = collected.of(lambda: _located(launch, draft, is_on_one_host=is_here))
    if job is None:
        raise ConfigError(collected.errors)
    is_shared = job.num_nodes > 1 and not job.is_on_one_host
    key = collected.of(lambda: job_key(environment, is_shared=is_shared))
    collected.errors += _port_errors(launch, job)
    if table is not None:
        collected.errors += _node_errors(job, table, launch.rank_table)
    if collected.errors or key is None:
        raise ConfigError(collected.errors)
    ray_address = launch.ray_address or environment.get("RAY_ADDRESS") or None
    rendezvous = Rendezvous.next_of(copy.identity) if copy is not None and job.is_on_one_host else None
    return replace(job, key=key, ray_address=ray_address, copy_rendezvous=rendezvous)


class _Collected:
    """Errors of several steps, none of which ends the others."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def of(self, step: Callable[[], Found]) -> Found | None:
        try:
            return step()
        except MindBatchError as error:
            self.errors += error.lines
            return None


def _is_on_one_host(copy: LauncherEnvironment | None) -> bool:
    """True if all copies of a command are on this host, as far as one may know."""
    if copy is None or copy.rank_table is None:
        return copy is not None and copy.is_on_one_host
    table, _ = read_rank_table(Path(copy.rank_table), AllowedDeviations(uneven=True))
    return len(table.servers) == 1


def _table(launch: LaunchConfig, topology: Topology) -> RankTable:
    """Reads the rank table, which must have as many ranks as there are processes."""
    assert launch.rank_table is not None
    table, _ = read_rank_table(Path(launch.rank_table))
    if table.num_ranks != topology.world_size:
        raise ConfigError(
            f"{user_key('rank_table')}={launch.rank_table}: holds {counted(table)}, and "
            f"parallel.data_parallel={topology.data_parallel} x "
            f"parallel.model_parallel={topology.model_parallel} x "
            f"parallel.pipeline_stage={topology.pipeline_stage} make {topology.world_size}; use a table of "
            "those, or other numbers"
        )
    return table


def _draft(
    launch: LaunchConfig, topology: Topology, copy: LauncherEnvironment | None, table: RankTable | None
) -> JobSetup:
    """Drafts the job with the number of ranks on each node; each copy of the command is a node of its own."""
    size = topology.world_size
    local = launch.local_worker_num
    if local is None and copy is not None:
        local = size // copy.size or 1
    if local is None and table is not None and table.num_ranks == size:  # else it is an error of the table
        local = len(table.servers[0].devices)
    node = copy.rank if copy is not None else 0
    return JobSetup(topology, local or size, node, launcher=launch.launcher, table=table, copy=copy)


def _located(launch: LaunchConfig, job: JobSetup, *, is_on_one_host: bool) -> JobSetup:
    """Finds the node that this process is in the job; the key is yet to be read.

    is_on_one_host: all copies are on this host.

    Raises:
        ConfigError: with every error: processes that do not fill the nodes, and what must be given.
    """
    if errors := [*_size_errors(launch, job)]:
        raise ConfigError(errors)
    if is_on_one_host and not any((launch.node_rank, launch.master_addr, launch.master_port)):
        return replace(job, is_on_one_host=True)
    node = job.node if launch.node_rank is None else launch.node_rank
    host = launch.master_addr or (job.copy.master_addr if job.copy is not None else None)
    port = launch.master_port or _port_of(job.copy)
    if errors := [*_rendezvous_errors(job.num_nodes, node, host, port)]:
        raise ConfigError(errors)
    return replace(job, node=node, rendezvous=(host or LOCAL_HOST, port or 0))


def _size_errors(launch: LaunchConfig, job: JobSetup) -> Iterator[str]:
    topology, local, copy, table = job.topology, job.local_size, job.copy, job.table
    size, replica = topology.world_size, topology.replica_size
    processes = f"{size} process{'es' * (size > 1)}"
    if copy is not None and local * copy.size != size:
        numbers = (topology.data_parallel, topology.model_parallel, topology.pipeline_stage)
        yield (
            f"{copy.launcher} has started {copy.size} processes, to which the {processes} of "
            f"parallel.data_parallel={numbers[0]} x parallel.model_parallel={numbers[1]} x "
            f"parallel.pipeline_stage={numbers[2]} cannot be divided "
            f"evenly, {local} to each; make these a multiple of {copy.size}, or start as many as divide "
            f"{size}{'' if launch.local_worker_num is None else ', and leave launch.local_worker_num out'}"
        )
    elif size % local:
        yield f"{_source(launch, job)}: {processes} cannot be divided into nodes of {local}"
    elif local % replica and replica % local:
        yield (
            f"{_source(launch, job)}: a replica has {replica} processes; a node must hold whole replicas, or "
            "whole nodes one replica"
        )
    if table is not None and table.num_ranks == size and len(table.servers) * local != size:
        yield (
            f"{user_key('rank_table')}: {len(table.servers)} servers with {size} devices, and "
            f"{size // local} nodes with {local} processes each"
        )


def _source(launch: LaunchConfig, job: JobSetup) -> str:
    """Names the setting that says how many processes a node has."""
    if launch.local_worker_num is not None:
        return f"{user_key('local_worker_num')}={job.local_size}"
    if job.copy is not None:
        copy = job.copy
        return f"{copy.launcher} has started {copy.size} processes, each of which serves {job.local_size}"
    return f"{user_key('rank_table')}={launch.rank_table}: {job.local_size} devices on a server"


def _port_of(copy: LauncherEnvironment | None) -> int | None:
    if copy is None:
        return None
    return port_of(copy.job) if copy.job is not None else copy.master_port


def _rendezvous_errors(nodes: int, node: int, host: str | None, port: int | None) -> Iterator[str]:
    if nodes == 1:
        if node != 0:
            yield (
                f"{user_key('node_rank')}={node}: all processes are on one node; leave it out, or set "
                "launch.local_worker_num to the processes of each node"
            )
        return
    if not 0 <= node < nodes:
        yield f"{user_key('node_rank')}={node}: there are {nodes} nodes; allowed: 0 to {nodes - 1}"
    for name, value in (("master_addr", host), ("master_port", port)):
        if value is None:
            yield f"launch.{name}: must be given where there are {nodes} nodes, the same on each of them"


def _node_errors(job: JobSetup, table: RankTable, path: str | None) -> Iterator[str]:
    """Yields the nodes whose ranks are not those of one server."""
    servers = {device.rank_id: server.server_id for server in table.servers for device in server.devices}
    for node in range(job.num_nodes):
        ranks = job.ranks_of(node)
        names = list(dict.fromkeys(servers[rank] for rank in ranks))
        if len(names) > 1:
            yield (
                f"{user_key('rank_table')}={path}: the ranks {ranks.start} to {ranks.stop - 1} of node "
                f"{node} are on several servers ({', '.join(names)}); set launch.local_worker_num to the "
                "devices of one"
            )


def _port_errors(launch: LaunchConfig, job: JobSetup) -> Iterator[str]:
    host, port = job.rendezvous
    if job.is_coordinator and port and (error := port_error(host, port)):
        is_msruns = job.copy is not None and job.copy.launcher == "msrun"
        host_name = user_key("master_addr", "MS_SCHED_HOST" if is_msruns and not launch.master_addr else "")
        port_name = user_key("master_port", "MS_SCHED_PORT" if is_msruns and not launch.master_port else "")
        yield f"{host_name}={host}, {port_name}={port}: {error}"


def shares_memory(job: JobSetup) -> bool:
    """True if the ranks of each replica are on one host."""
    is_one_host = job.num_nodes == 1 or job.is_on_one_host
    if job.launcher == "ray":  # in a cluster that was running before no rank has a node yet
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


def with_rendezvous(job: JobSetup, model: ModelConfig, runtime: RuntimeConfig) -> JobSetup:
    """Adds to the job how the ranks of each replica find each other."""
    has_worlds = needs_world(job, model, runtime)
    return replace(
        job,
        has_worlds=has_worlds,
        has_schedulers=has_worlds and (job.launcher != "rank_table" or runtime.device_target == "CPU"),
        joins_mpi=joins_mpi(job, model, runtime),
    )


def joins_mpi(job: JobSetup, model: ModelConfig, runtime: RuntimeConfig) -> bool:
    """True if ranks of a replica on several hosts join through MPI: mpirun has started a copy for each."""
    if shares_memory(job) or needs_world(job, model, runtime):
        return False
    copy = job.copy
    if copy is None or copy.launcher != "mpirun" or job.launcher != "dynamic":
        return False
    return job.local_size == 1 and job.node == copy.rank


def refuse_apart(job: JobSetup, model: ModelConfig, runtime: RuntimeConfig, max_restarts: int = 0) -> None:
    """Refuses ranks of a replica that have no way to exchange tensors.

    Raises:
        ConfigError: they are on several hosts and not in MPI, or there are no C++ kernels.
    """
    topology = job.topology
    if topology.replica_size == 1 or needs_world(job, model, runtime):
        return
    sizes = (
        f"parallel.model_parallel={topology.model_parallel}, "
        f"parallel.pipeline_stage={topology.pipeline_stage}"
    )
    besides = (
        "parallel.data_parallel of replicas that are whole on each host (launch.local_worker_num a multiple "
        f"of {topology.replica_size}), model.quantization=int8 for a model that is smaller, and Ascend"
    )
    if not shares_memory(job) and not job.joins_mpi:
        raise ConfigError(
            f"{sizes}: on a CPU the ranks of a replica share the memory of one host, and here they may be "
            "on several; allowed: mpirun of Open MPI, which starts a copy of the command for each rank, and "
            f"mpi4py; {besides}"
        )
    if job.joins_mpi and not is_installed("mpi4py"):
        raise ConfigError(
            f"{sizes}: ranks on several hosts join through mpi4py and Open MPI; {missing('mpi4py')}; "
            f"allowed without it: {besides}"
        )
    if job.joins_mpi and max_restarts:
        raise ConfigError(
            f"launch.max_restarts={max_restarts}: a process that has left MPI cannot join it again; allowed "
            "with ranks of a replica on several hosts: 0"
        )
    if find_library() is None:
        raise ConfigError(
            "parallel.model_parallel, parallel.pipeline_stage: the kernels are "
            f"{library_text(computes=False)}"
        )
