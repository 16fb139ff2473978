"""Decides the role of this process in a job: it runs the task, serves as a node, or only prints a plan."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mindbatch.config.launch_schema import has_ranks
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.schema import TaskConfig
from mindbatch.io.errors import EXIT_DONE
from mindbatch.io.screen_text import data_output, say

if TYPE_CHECKING:
    from mindbatch.launch.process_plan import JobSetup

RunTask = Callable[[TaskConfig], int]

_ONE = "one process: this one; nothing else would be started"


def run_in_job(config: TaskConfig, run: RunTask) -> int:
    """Runs a task that `is_launched`, if that is the role of this process; returns the exit code.

    Raises:
        ConfigError: lists the errors of the section `launch` and of this machine.
        MindBatchError: this node's part of the job has failed.
    """
    assert isinstance(config, ModelTaskConfig)
    if not has_ranks(config.launch, config.parallel) and config.launch.launcher != "srun":
        return _tell([_ONE]) if config.launch.dry_run else _run_alone(config, run)
    from mindbatch.replicas.load import set_up_job  # not needed where there is one process

    job = config.job = set_up_job(config)
    if config.launch.dry_run:
        from mindbatch.replicas.start import dry_run

        command = [Path(sys.argv[0]).name, *sys.argv[1:]]
        return _tell([*dry_run(job, command, Path(config.launch.log_dir or "(temporary folder)"))])
    if job.copy is not None and job.copy.is_scheduler:  # of msrun; replicas have schedulers of their own
        return EXIT_DONE
    return run(config) if job.is_coordinator else _serve(config, job)


def _run_alone(config: ModelTaskConfig, run: RunTask) -> int:
    if (launcher := config.launch.launcher) != "dynamic":
        say(f"launch={launcher}: one process needs no launcher; parallel.* makes more of them")
    return run(config)


def _tell(lines: list[str]) -> int:
    print(*lines, sep="\n", file=data_output(), flush=True)
    return EXIT_DONE


def _serve(config: ModelTaskConfig, job: JobSetup) -> int:
    from mindbatch.launch.preflight import refuse_apart
    from mindbatch.replicas.load import node_processes
    from mindbatch.replicas.start import serve_node

    refuse_apart(job, config.model, config.runtime, config.launch.max_restarts)
    ranks, (host, port) = job.ranks, job.rendezvous
    where = "on this host" if job.is_on_one_host else f"at {host}:{port}"
    say(f"node {job.node}: ranks {ranks.start} to {ranks.stop - 1} for node 0 {where}")
    return serve_node(job, node_processes(config, job, job))
