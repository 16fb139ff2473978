"""Checks a job's setup before any process is started, and reports all errors at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from mindbatch.config.launch_schema import LaunchConfig, given_as
from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.launch.copy_meeting import CopyMeeting
from mindbatch.launch.free_ports import port_fault
from mindbatch.launch.node_place import node_place
from mindbatch.launch.process_plan import JobSetup
from mindbatch.launch.rank_environment import job_key
from mindbatch.launch.rank_table import RankTable, counted
from mindbatch.launch.started_as import LauncherEnvironment, started_as
from mindbatch.launch.starters import STARTERS
from mindbatch.launch.table_reader import Leave, read_rank_table
from mindbatch.parallel.topology import Topology

Found = TypeVar("Found")


def set_up(launch: LaunchConfig, topology: Topology, environment: Mapping[str, str]) -> JobSetup:
    """Resolves the section `launch` on this machine.

    environment: the variables of this process, by which launchers tell which copy it is.

    Raises:
        ConfigError: with every error.
    """
    collected = _Collected()
    copy = collected.of(lambda: started_as(environment))
    knows_copy = not collected.faults
    table = None if launch.rank_table is None else collected.of(lambda: _table(launch, topology))
    is_here = collected.of(lambda: _is_on_one_host(copy)) if knows_copy else None
    job = (
        collected.of(lambda: node_place(launch, topology, copy, table, is_on_one_host=is_here))
        if is_here is not None
        else None
    )
    collected.faults += STARTERS[launch.launcher].faults()
    if job is None:
        raise ConfigError(collected.faults)
    is_shared = job.num_nodes > 1 and not job.is_on_one_host
    key = collected.of(lambda: job_key(environment, is_shared=is_shared))
    collected.faults += _port_faults(launch, job)
    if table is not None:
        collected.faults += _node_faults(job, table, launch.rank_table)
    if collected.faults or key is None:
        raise ConfigError(collected.faults)
    ray_address = launch.ray_address or environment.get("RAY_ADDRESS") or None
    copies = CopyMeeting.next_of(copy.identity) if copy is not None and job.is_on_one_host else None
    return replace(job, key=key, ray_address=ray_address, copies=copies)


class _Collected:
    """Faults of several steps, none of which ends the others."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def of(self, step: Callable[[], Found]) -> Found | None:
        try:
            return step()
        except MindBatchError as error:
            self.faults += error.faults
            return None


def _is_on_one_host(copy: LauncherEnvironment | None) -> bool:
    """True if all copies of a command are on this host, as far as one may know."""
    if copy is None or copy.rank_table is None:
        return copy is not None and copy.is_on_one_host
    table, _ = read_rank_table(Path(copy.rank_table), Leave(uneven=True))
    return len(table.servers) == 1


def _table(launch: LaunchConfig, topology: Topology) -> RankTable:
    """The rank table, of as many ranks as there are processes."""
    assert launch.rank_table is not None
    table, _ = read_rank_table(Path(launch.rank_table))
    if table.num_ranks != topology.world_size:
        raise ConfigError(
            f"{given_as('rank_table')}={launch.rank_table}: holds {counted(table)}, and "
            f"parallel.data_parallel={topology.data_parallel} x model_parallel={topology.model_parallel} x "
            f"pipeline_stage={topology.pipeline_stage} make {topology.world_size}; use a table of "
            "those, or other numbers"
        )
    return table


def _node_faults(job: JobSetup, table: RankTable, path: str | None) -> Iterator[str]:
    """Nodes whose ranks are not those of one server."""
    servers = {device.rank_id: server.server_id for server in table.servers for device in server.devices}
    for node in range(job.num_nodes):
        ranks = job.ranks_of(node)
        names = list(dict.fromkeys(servers[rank] for rank in ranks))
        if len(names) > 1:
            yield (
                f"{given_as('rank_table')}={path}: the ranks {ranks.start} to {ranks.stop - 1} of node "
                f"{node} are on several servers ({', '.join(names)}); set launch.local_worker_num to the "
                "devices of one"
            )


def _port_faults(launch: LaunchConfig, job: JobSetup) -> Iterator[str]:
    host, port = job.meeting
    if job.is_front and port and (fault := port_fault(host, port)):
        is_msruns = job.copy is not None and job.copy.launcher == "msrun"
        host_name = given_as("master_addr", "MS_SCHED_HOST" if is_msruns and not launch.master_addr else "")
        port_name = given_as("master_port", "MS_SCHED_PORT" if is_msruns and not launch.master_port else "")
        yield f"{host_name}={host}, {port_name}={port}: {fault}"
