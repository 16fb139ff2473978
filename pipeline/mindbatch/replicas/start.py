"""Starts the rank processes of a job, on other nodes through agents, or serves a job as such an agent."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

from mindbatch.io.children import command
from mindbatch.io.errors import MindBatchError
from mindbatch.launch.job_ranks import JobRanks, LocalProcesses
from mindbatch.launch.launcher_environment import SAME_CALLS, Coordinator
from mindbatch.launch.process_log import write_replica_tables
from mindbatch.launch.process_plan import HIDDEN, JOB_KEY, RANK, SCHEDULER, JobSetup, ProcessSpec
from mindbatch.parallel.connection import MessageConnection, RankMessage
from mindbatch.replicas import rank_main
from mindbatch.replicas.agent import patient_connection, serve
from mindbatch.replicas.rank_links import RankLinks
from mindbatch.replicas.ray_cluster import RayCluster
from mindbatch.replicas.remote_nodes import ON_EACH_NODE, wait_for_agents

Commands = Mapping[str, Sequence[str]]


def _commands() -> Commands:
    return {RANK: command(rank_main.main), SCHEDULER: command(rank_main.serve_scheduler)}


def start_ranks(
    job: JobSetup,
    local: LocalProcesses,
    notice: Callable[[str], None] = lambda text: None,
    cluster: RayCluster | None = None,
) -> tuple[RankLinks, JobRanks]:
    """Starts all rank processes, once the agents of the other nodes have come; the connections to both.

    cluster: where they are to run, with launch=ray; its driver is the agent of all of them.

    Raises:
        MindBatchError: an agent has not come, or a process cannot be started. None is left then.
    """
    expected = _ranks_of_agents(job)
    links = _links(job, job.rendezvous[0] if cluster is None else cluster.host, takes_agents=bool(expected))

    def close() -> None:
        if cluster is not None:
            cluster.end()

    coordinator = Coordinator(links.address, job.key)
    remedy = ON_EACH_NODE if job.copy_rendezvous is None else SAME_CALLS
    try:
        with nullcontext() if job.copy_rendezvous is None else job.copy_rendezvous.opened(coordinator):
            if cluster is not None:
                cluster.start(coordinator.address, coordinator.key)
            check = cluster.check if cluster is not None else lambda: None
            agents = wait_for_agents(
                links, expected, job.table_digest, check, notice, tells=job.num_nodes > 1, remedy=remedy
            )
        if cluster is not None:
            agents[0].loss = cluster.loss
        return links, JobRanks(replace(job, coordinator=links.address), [local, *agents], close)
    except BaseException:
        close()
        links.close()
        raise


def _links(job: JobSetup, host: str, *, takes_agents: bool) -> RankLinks:
    """Listens at the address of a job; at its port where agents are to find it."""
    port = job.rendezvous[1] if takes_agents else 0
    try:
        return RankLinks(host, job.key, job.topology.world_size, port, takes_agents=takes_agents)
    except OSError as error:
        raise MindBatchError(
            f"launch: {host}:{port} cannot be listened on ({error.strerror or error}); node 0 must have the "
            "address, and the port must be free"
        ) from error


def local_processes(
    job: JobSetup, logs: Path, *, shown: bool = False, commands: Commands | None = None
) -> LocalProcesses:
    """Returns the processes of this node, none of which is started yet.

    logs: a folder that exists. shown: show their output as it comes, too. commands: by role, of
    `children.command`.
    """
    if job.table is not None:
        write_replica_tables(job.table, logs, job.topology.replica_size)
    has = {"has_tables": job.table is not None, "joins_mpi": job.joins_mpi}
    return LocalProcesses(commands or _commands(), logs, **has, shown=shown)


def _ranks_of_agents(job: JobSetup) -> list[range]:
    """Lists the ranks that each agent serves: all with Ray, which starts them, or those of a node."""
    if job.launcher == "ray":
        return [range(job.topology.world_size)]
    return [job.ranks_of(node) for node in range(1, job.num_nodes)]


def serve_node(job: JobSetup, local: LocalProcesses) -> int:
    """Starts and watches this node's processes until the job is over; returns the exit code.

    Raises:
        MindBatchError: node 0 was not found or has gone. None of the processes is left.
    """
    return serve_coordinator(job, local, *connection_to_coordinator(job))


def connection_to_coordinator(
    job: JobSetup, notice: Callable[[str], None] = lambda text: None
) -> tuple[MessageConnection, bytes]:
    """Connects to the coordinator, which may not have been started yet; returns the key of the job too.

    Raises:
        MindBatchError: it was not found.
    """
    copies = job.copy_rendezvous
    address, key = (job.rendezvous, job.key) if copies is None else copies.wait(notice)
    return patient_connection(address, key), key


def serve_coordinator(
    job: JobSetup,
    local: LocalProcesses,
    connection: MessageConnection,
    key: bytes,
    shared: SimpleQueue[RankMessage | None] | None = None,
) -> int:
    """Starts and watches this node's processes until the job is over; see `agent.serve`."""
    world, table = job.topology.world_size, job.table_digest
    return serve(connection, local, key, job.ranks, world, table, job.device_offset, shared)


_FREE_PORT = "(free port)"
_PARENT = "(process id)"
"""Placeholder for the id of who starts the process, without whom it ends."""


def dry_run(job: JobSetup, command_line: Sequence[str], logs: Path) -> Iterator[str]:
    """Yields the commands that would be started on each node, as a shell takes them; no key of the job.

    command_line: as it was given. logs: the folder of them on each node.
    """
    host, port = job.rendezvous
    job = replace(job, coordinator=(host, port if _ranks_of_agents(job) else 0))
    specs = [spec for replica in range(job.topology.data_parallel) for spec in job.specs(replica, 0, 0)]
    for node in range(job.num_nodes):
        ranks = job.ranks_of(node)
        at = f"{host}:{port or _FREE_PORT}"
        yield f"node {node}: ranks {ranks.start} to {ranks.stop - 1}; {_role(job, node, at, command_line)}"
        for spec in specs:
            if spec.rank in ranks if spec.is_rank else node == 0:
                yield from _process_lines(spec, job, logs)


def _role(job: JobSetup, node: int, at: str, command_line: Sequence[str]) -> str:
    if node == 0:
        waits = job.num_nodes > 1
        return f"coordinates the job{f', the other nodes find it at {at}' if waits else ''}"
    if job.copy is not None:
        return f"copy {node} of this command, which {job.copy.launcher} starts"
    own = [word for word in command_line if not word.startswith(("launch.node_rank=", "launch.dry_run="))]
    return f"the user starts there: {JOB_KEY}={HIDDEN} {shlex.join([*own, f'launch.node_rank={node}'])}"


def _process_lines(spec: ProcessSpec, job: JobSetup, logs: Path) -> Iterator[str]:
    variables = dict(spec.variables)
    if JOB_KEY in variables:
        variables[JOB_KEY] = HIDDEN
        host, port = job.coordinator
        variables["MINDBATCH_COORDINATOR"] = f"{host}:{port or _FREE_PORT}"
    if "MS_SCHED_PORT" in variables:
        variables["MS_SCHED_PORT"] = _FREE_PORT
    if job.table is not None and spec.is_rank:
        variables["RANK_TABLE_FILE"] = str(logs / f"rank_table_{spec.replica}.json")
    yield f"  {spec.name}"
    yield f"    {_words(variables, [*_commands()[spec.role], _PARENT])}"


def _words(variables: Mapping[str, str], argv: Sequence[str]) -> str:
    assignments = [f"{name}={shlex.quote(text)}" for name, text in variables.items()]
    return " ".join([*assignments, shlex.join(argv)])
