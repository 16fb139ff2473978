"""Starts the rank processes of a job, by way of agents those of other nodes; serves it on such a node."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from mindbatch.io.child_main import WHOEVER
from mindbatch.io.children import command
from mindbatch.io.errors import EXIT_DONE, MindBatchError
from mindbatch.io.screen_text import say
from mindbatch.launch.free_ports import keep_on_this_host
from mindbatch.launch.job_ranks import JobRanks, LocalProcesses, NodeProcesses
from mindbatch.launch.process_log import write_replica_tables
from mindbatch.launch.process_plan import (
    JOB_KEY,
    RANK,
    SCHEDULER,
    Address,
    JobPlan,
    JobSetup,
    ProcessSpec,
    inherited,
    program_command,
)
from mindbatch.launch.started_as import SAME_CALLS, Front
from mindbatch.launch.starters import STARTERS, Program
from mindbatch.launch.supervisor import Supervisor
from mindbatch.parallel.connection import Message, MessageConnection
from mindbatch.replicas import agent as agent_main
from mindbatch.replicas import rank_main
from mindbatch.replicas.agent import patient_connection, serve
from mindbatch.replicas.remote_nodes import RemoteNodes

_TICK_SECONDS = 0.1


def _commands() -> Mapping[str, Sequence[str]]:
    return {RANK: command(rank_main.main), SCHEDULER: command(rank_main.serve_scheduler)}


@dataclass(frozen=True)
class NodeSettings:
    """Settings of this node's processes.

    logs: a folder that exists. shown: show their output as it comes, too.
    commands: by role, of `children.command`.
    """

    logs: Path
    shown: bool = False
    commands: Mapping[str, Sequence[str]] = field(default_factory=_commands)


def job_plan(job: JobSetup, front: Address, device_target: str, *, has_worlds: bool) -> JobPlan:
    """Builds the plan that the processes are started by.

    front: where the coordinating process listens. has_worlds: see `preflight.needs_world`.
    """
    has_schedulers = has_worlds and (job.launcher != "rank_table" or device_target == "CPU")
    return JobPlan(job, front, has_schedulers)


def start_ranks(
    job: JobSetup,
    plan: JobPlan,
    settings: NodeSettings,
    notice: Callable[[str], None] = lambda text: None,
) -> JobRanks:
    """Starts all rank processes, once the agents of the other nodes have come.

    Raises:
        MindBatchError: an agent has not come, or a process cannot be started. None is left then.
    """
    local = local_processes(job, settings)
    program = StartedProgram(job, settings)
    expected = _ranks_of_agents(job, program.is_needed)
    if not expected:
        return JobRanks(plan, [local], lambda spec: 0)
    world_size = job.topology.world_size
    remedy = {} if job.copies is None else {"remedy": SAME_CALLS}
    remote = RemoteNodes(job.meeting, job.key, expected, world_size, job.table_digest, **remedy)

    def close() -> None:
        remote.close()
        program.end()

    several = job.num_nodes > 1
    front = Front(remote.address, job.key)
    try:
        with nullcontext() if job.copies is None else job.copies.opened(front):
            program.start(remote.address)
            nodes: list[NodeProcesses] = [local, *remote.wait(program.check, notice, tells=several)]
            program.keep_on_this_host()
    except BaseException:
        close()
        raise
    agent_of = {rank: place for place, ranks in enumerate(expected, 1) for rank in ranks}

    def place_of(spec: ProcessSpec) -> int:
        return agent_of.get(spec.rank, 0) if spec.is_rank else 0

    return JobRanks(plan, nodes, place_of, close)


def local_processes(job: JobSetup, settings: NodeSettings) -> LocalProcesses:
    """The processes of this node, none of which is started yet."""
    if job.table is not None:
        write_replica_tables(job.table, settings.logs, job.topology.replica_size)
    has = {"has_tables": job.table is not None, "joins_mpi": job.joins_mpi}
    return LocalProcesses(settings.commands, settings.logs, **has, shown=settings.shown)


def _ranks_of_agents(job: JobSetup, one_by_one: bool) -> list[range]:
    """The ranks that each agent serves: one, where a program starts them, else those of another node."""
    if one_by_one:
        return [range(rank, rank + 1) for rank in range(job.topology.world_size)]
    return [job.ranks_of(node) for node in range(1, job.num_nodes)]


class StartedProgram:
    """The program of a launcher, which starts an agent for each rank of this node; it may need none."""

    def __init__(self, job: JobSetup, settings: NodeSettings) -> None:
        self._job, self._settings = job, settings
        self._processes = Supervisor(settings.logs, shown=settings.shown)
        program = STARTERS[job.launcher].program(job, ["agent"])
        self.is_needed = program is not None
        self._is_open = program is not None and program.listens

    def start(self, meeting: Address) -> None:
        """Starts it, if it is needed. meeting: where the agents are to connect."""
        if self.is_needed:
            program = launcher_program(self._job, meeting, self._settings)
            environment = inherited(os.environ) | dict(program.variables) | {JOB_KEY: self._job.key.hex()}
            command_line = program_command(program.argv, self._settings.logs)
            self._processes.start(program.name, command_line, environment)

    def check(self) -> None:
        """Raises MindBatchError where it has ended."""
        self.keep_on_this_host()
        for ended in self._processes.ended():
            what = f"{ended.name} ended with {ended.how} before all ranks were started"
            raise MindBatchError([what, *ended.last_lines])

    def wait(self) -> None:
        """Until it has ended. Raises MindBatchError where it failed."""
        while not (ended := self._processes.ended()):
            self.keep_on_this_host()
            time.sleep(_TICK_SECONDS)
        if ended[0].how != "exit code 0":
            raise MindBatchError([f"{ended[0].name} ended with {ended[0].how}", *ended[0].last_lines])

    def keep_on_this_host(self) -> None:
        """Lets it be reached from this host alone, which is all it needs; where that cannot be it is told."""
        process = self._processes.process_id(self._job.launcher) if self._is_open else None
        if process is not None and not keep_on_this_host(process):
            self._is_open = False
            say(
                f"launch={self._job.launcher}: it listens at all addresses of this host, and this system "
                "does not let mindbatch change that; launch=dynamic listens at 127.0.0.1 alone"
            )

    def end(self) -> None:
        """Ends it with what is left of it."""
        self._processes.end()


def launcher_program(job: JobSetup, meeting: Address, settings: NodeSettings) -> Program:
    todo = {
        "meeting": meeting,
        "first_rank": job.ranks.start,
        "world_size": job.topology.world_size,
        "folder": os.getcwd(),
        "logs": str(settings.logs),
        "commands": settings.commands,
        "table": job.table_digest,
    }
    agent = [*command(agent_main.main, json.dumps(todo)), WHOEVER]
    program = STARTERS[job.launcher].program(job, agent)
    assert program is not None
    return program


def serve_node(job: JobSetup, settings: NodeSettings) -> int:
    """Starts and watches this node's processes until the job is over; returns the exit code.

    Raises:
        MindBatchError: node 0 was not found or has gone, or a launcher failed. None of the processes is left.
    """
    program = StartedProgram(job, settings)
    if program.is_needed:
        try:
            program.start(job.meeting)
            program.wait()
        finally:
            program.end()
        return EXIT_DONE
    return serve_front(job, settings, *connection_to_front(job))


def connection_to_front(
    job: JobSetup, notice: Callable[[str], None] = lambda text: None
) -> tuple[MessageConnection, bytes]:
    """A connection to the front, which may not have been started yet, and the key of the job.

    Raises:
        MindBatchError: it was not found.
    """
    meeting, key = (job.meeting, job.key) if job.copies is None else job.copies.wait(notice)
    return patient_connection(meeting, key), key


def serve_front(
    job: JobSetup,
    settings: NodeSettings,
    connection: MessageConnection,
    key: bytes,
    shared: SimpleQueue[Message | None] | None = None,
) -> int:
    """Starts and watches this node's processes until the job is over; see `agent.serve`."""
    return serve(
        connection,
        local_processes(job, settings),
        key,
        job.ranks,
        job.topology.world_size,
        job.table_digest,
        job.device_offset,
        shared,
    )
