"""Rank of this node in a job and rendezvous address of the nodes, from its keys and what launchers say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mindbatch.config.launch_schema import LaunchConfig, given_as
from mindbatch.io.errors import ConfigError
from mindbatch.launch.process_plan import LOCAL_HOST, JobSetup
from mindbatch.launch.rank_table import RankTable
from mindbatch.launch.started_as import LauncherEnvironment, port_of
from mindbatch.parallel.topology import Topology


def node_place(
    launch: LaunchConfig,
    topology: Topology,
    copy: LauncherEnvironment | None,
    table: RankTable | None = None,
    *,
    is_on_one_host: bool = False,
) -> JobSetup:
    """The job with the place of this process in it; the key is yet to be found.

    copy: as which copy of the command a launcher has started it; each copy is a node of its own.
    is_on_one_host: all copies are on this host.

    Raises:
        ConfigError: with every fault: processes that do not fill the nodes, and what must be given.
    """
    size = topology.world_size
    local = _local_size(launch, size, copy, table)
    faults = [*_size_faults(launch, local, topology, copy, table)]
    if faults:
        raise ConfigError(faults)
    copy_rank = copy.rank if copy is not None else 0
    job = JobSetup(topology, local, copy_rank, launcher=launch.launcher, table=table, copy=copy)
    if is_on_one_host and not any((launch.node_rank, launch.master_addr, launch.master_port)):
        return replace(job, is_on_one_host=True)
    node = copy_rank if launch.node_rank is None else launch.node_rank
    host = launch.master_addr or (copy.master_addr if copy is not None else None)
    port = launch.master_port or _port_of(copy)
    if job.num_nodes > 1:
        faults = [*_meeting_faults(job.num_nodes, node, host, port)]
        if faults:
            raise ConfigError(faults)
    return replace(job, node=node, meeting=(host or LOCAL_HOST, port or 0))


def _local_size(
    launch: LaunchConfig, size: int, copy: LauncherEnvironment | None, table: RankTable | None
) -> int:
    if launch.local_worker_num is not None:
        return launch.local_worker_num
    if copy is not None:
        return size // copy.size or 1
    if table is not None and table.num_ranks == size:  # anything else is a fault of the table
        return len(table.servers[0].devices)
    return size


def _size_faults(
    launch: LaunchConfig,
    local: int,
    topology: Topology,
    copy: LauncherEnvironment | None,
    table: RankTable | None,
) -> Iterator[str]:
    size, replica = topology.world_size, topology.replica_size
    processes = f"{size} process{'es' * (size > 1)}"
    if copy is not None and local * copy.size != size:
        numbers = (topology.data_parallel, topology.model_parallel, topology.pipeline_stage)
        yield (
            f"{copy.launcher} has started {copy.size} processes, to which the {processes} of data_parallel="
            f"{numbers[0]} x model_parallel={numbers[1]} x pipeline_stage={numbers[2]} cannot be dealt "
            f"evenly, {local} to each; make these a multiple of {copy.size}, or start as many as divide "
            f"{size}{'' if launch.local_worker_num is None else ', and leave launch.local_worker_num out'}"
        )
    elif size % local:
        yield f"{_source(launch, local, copy)}: {processes} cannot be dealt to nodes of {local}"
    elif local % replica and replica % local:
        yield (
            f"{_source(launch, local, copy)}: a replica has {replica} processes; a node must hold whole "
            "replicas, or whole nodes one replica"
        )
    if table is not None and table.num_ranks == size and len(table.servers) * local != size:
        yield (
            f"{given_as('rank_table')}: {len(table.servers)} servers with {size} devices, and "
            f"{size // local} nodes with {local} processes each"
        )


def _source(launch: LaunchConfig, local: int, copy: LauncherEnvironment | None) -> str:
    """Who has said how many processes a node has."""
    if launch.local_worker_num is not None:
        return f"{given_as('local_worker_num')}={local}"
    if copy is not None:
        return f"{copy.launcher} has started {copy.size} processes, each of which serves {local}"
    return f"{given_as('rank_table')}={launch.rank_table}: {local} devices on a server"


def _port_of(copy: LauncherEnvironment | None) -> int | None:
    if copy is None:
        return None
    return port_of(copy.job) if copy.job is not None else copy.master_port


def _meeting_faults(nodes: int, node: int, host: str | None, port: int | None) -> Iterator[str]:
    if not 0 <= node < nodes:
        yield f"{given_as('node_rank')}={node}: there are {nodes} nodes; allowed: 0 to {nodes - 1}"
    for name, value in (("master_addr", host), ("master_port", port)):
        if value is None:
            yield f"launch.{name}: must be given where there are {nodes} nodes, the same on each of them"
