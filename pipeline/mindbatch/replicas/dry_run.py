"""Commands that would be started on each node, as a shell takes them; the key of the job is hidden."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mindbatch.launch.process_plan import HIDDEN, JOB_KEY, JobPlan, JobSetup, ProcessSpec
from mindbatch.launch.starters import STARTERS
from mindbatch.replicas.start import NodeSettings, launcher_program

_FREE_PORT = "(free port)"
_PARENT = "(process id)"
"""Placeholder for the id of who starts the process, without whom it ends."""


def dry_run(job: JobSetup, plan: JobPlan, command: Sequence[str], logs: Path) -> Iterator[str]:
    """The lines to print.

    plan: of the job, whose front listens nowhere yet. command: as it was given.
    logs: the folder of the logs on each node.
    """
    host, port = job.meeting
    specs = [spec for replica in range(job.topology.data_parallel) for spec in plan.replica(replica, 0, 0)]
    for node in range(job.num_nodes):
        ranks = job.ranks_of(node)
        at = f"{host}:{port or _FREE_PORT}"
        yield f"node {node}: ranks {ranks.start} to {ranks.stop - 1}; {_role(job, node, at, command)}"
        yield from _program_lines(replace(job, node=node), logs, port)
        for spec in specs:
            if spec.rank in ranks if spec.is_rank else node == 0:
                yield from _process_lines(spec, job, logs)


def _role(job: JobSetup, node: int, at: str, command: Sequence[str]) -> str:
    if node == 0:
        waits = job.num_nodes > 1
        return f"coordinates the job{f', the other nodes find it at {at}' if waits else ''}"
    if job.copy is not None:
        return f"copy {node} of this command, which {job.copy.launcher} starts"
    own = [word for word in command if not word.startswith(("launch.node_rank=", "launch.dry_run="))]
    return f"the user starts there: {JOB_KEY}={HIDDEN} {shlex.join([*own, f'launch.node_rank={node}'])}"


def _program_lines(job: JobSetup, logs: Path, port: int) -> Iterator[str]:
    """The program that starts the agents of a node, where there is one."""
    if STARTERS[job.launcher].program(job, ["agent"]) is not None:
        program = launcher_program(job, (job.meeting[0], port), NodeSettings(logs))
        yield f"  {program.name}, which starts an agent for each rank; in {shlex.quote(str(logs))}"
        yield f"    {_words({**program.variables, JOB_KEY: HIDDEN}, program.argv)}"


def _process_lines(spec: ProcessSpec, job: JobSetup, logs: Path) -> Iterator[str]:
    variables = dict(spec.variables)
    if JOB_KEY in variables:
        variables[JOB_KEY] = HIDDEN
        variables["MINDBATCH_FRONT"] = variables["MINDBATCH_FRONT"].rpartition(":")[0] + f":{_FREE_PORT}"
    if "MS_SCHED_PORT" in variables:
        variables["MS_SCHED_PORT"] = _FREE_PORT
    if job.table is not None and spec.is_rank:
        variables["RANK_TABLE_FILE"] = str(logs / f"rank_table_{spec.replica}.json")
    yield f"  {spec.name}"
    yield f"    {_words(variables, [*NodeSettings(logs).commands[spec.role], _PARENT])}"


def _words(variables: Mapping[str, str], argv: Sequence[str]) -> str:
    assignments = [f"{name}={shlex.quote(text)}" for name, text in variables.items()]
    return " ".join([*assignments, shlex.join(argv)])
