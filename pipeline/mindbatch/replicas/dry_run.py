"""Commands that would be started on each node, as a shell takes them; the key of the job is hidden."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mindbatch.launch.job_key import HIDDEN, VARIABLE
from mindbatch.launch.preflight import JobSetup
from mindbatch.launch.process_plan import JobPlan, ProcessSpec
from mindbatch.replicas.process_commands import process_commands
from mindbatch.replicas.start import launcher_program

_FREE_PORT = "(free port)"
_PARENT = "(process id)"
"""Placeholder for the id of who starts the process, without whom it ends."""


def dry_run(setup: JobSetup, plan: JobPlan, command: Sequence[str], logs: Path) -> Iterator[str]:
    """The lines to print.

    plan: of the job, whose front listens nowhere yet. command: as it was given.
    logs: the folder of the logs on each node.
    """
    host, port = setup.place.meeting
    layout = setup.place.layout
    specs = [spec for replica in range(layout.topology.data_parallel) for spec in plan.replica(replica, 0, 0)]
    for node in range(layout.num_nodes):
        ranks = layout.ranks_of(node)
        at = f"{host}:{port or _FREE_PORT}"
        yield f"node {node}: ranks {ranks.start} to {ranks.stop - 1}; {_role(setup, node, at, command)}"
        there = replace(setup, place=replace(setup.place, node=node))
        yield from _program_lines(there, logs, port)
        for spec in specs:
            if (layout.node_of(spec.rank) if spec.is_rank else 0) == node:
                yield from _process_lines(spec, setup, logs)


def _role(setup: JobSetup, node: int, at: str, command: Sequence[str]) -> str:
    if node == 0:
        waits = setup.place.layout.num_nodes > 1
        return f"coordinates the job{f', the other nodes find it at {at}' if waits else ''}"
    if setup.copy is not None:
        return f"copy {node} of this command, which {setup.copy.launcher} starts"
    own = [word for word in command if not word.startswith(("launch.node_rank=", "launch.dry_run="))]
    return f"the user starts there: {VARIABLE}={HIDDEN} {shlex.join([*own, f'launch.node_rank={node}'])}"


def _program_lines(setup: JobSetup, logs: Path, port: int) -> Iterator[str]:
    """The program that starts the agents of a node, where there is one."""
    if setup.starter.program(setup.place, ["agent"]) is not None:
        program = launcher_program(setup, (setup.place.meeting[0], port), logs, process_commands())
        yield f"  {program.name}, which starts an agent for each rank; in {shlex.quote(str(logs))}"
        yield f"    {_words({**program.variables, VARIABLE: HIDDEN}, program.argv)}"


def _process_lines(spec: ProcessSpec, setup: JobSetup, logs: Path) -> Iterator[str]:
    variables = dict(spec.variables)
    if VARIABLE in variables:
        variables[VARIABLE] = HIDDEN
        variables["MINDBATCH_FRONT"] = variables["MINDBATCH_FRONT"].rpartition(":")[0] + f":{_FREE_PORT}"
    if "MS_SCHED_PORT" in variables:
        variables["MS_SCHED_PORT"] = _FREE_PORT
    if setup.table is not None and spec.is_rank:
        variables["RANK_TABLE_FILE"] = str(logs / f"rank_table_{spec.replica}.json")
    yield f"  {spec.name}"
    yield f"    {_words(variables, [*process_commands()[spec.role], _PARENT])}"


def _words(variables: Mapping[str, str], argv: Sequence[str]) -> str:
    assignments = [f"{name}={shlex.quote(text)}" for name, text in variables.items()]
    return " ".join([*assignments, shlex.join(argv)])
