"""Role of this `mindbatch` in a job: it runs the task, serves it as a node, or neither."""

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
    from mindbatch.launch.preflight import JobSetup

Run = Callable[[TaskConfig], int]

_ONE = "one process: this one; nothing else would be started"


def run_in_job(config: TaskConfig, run: Run) -> int:
    """Runs a task that `is_launched`, if this process is the one to do it; returns the exit code.

    Raises:
        ConfigError: with every fault of the section `launch` and of this machine.
        MindBatchError: this node's part of the job has failed.
    """
    assert isinstance(config, ModelTaskConfig)
    if not has_ranks(config.launch, config.parallel) and config.launch.launcher != "srun":
        return _tell([_ONE]) if config.launch.dry_run else _run_alone(config, run)
    from mindbatch.replicas.load import set_up_job  # not needed where there is one process

    setup = config.job_setup = set_up_job(config)
    if config.launch.dry_run:
        return _tell_of(config, setup)
    if setup.copy is not None and setup.copy.is_scheduler:  # of msrun; replicas have schedulers of their own
        return EXIT_DONE
    return run(config) if setup.place.is_front else _serve(config, setup)


def _run_alone(config: ModelTaskConfig, run: Run) -> int:
    if (launcher := config.launch.launcher) != "dynamic":
        say(f"launch={launcher}: one process needs no launcher; parallel.* makes more of them")
    return run(config)


def _tell_of(config: ModelTaskConfig, setup: JobSetup) -> int:
    from mindbatch.replicas.dry_run import dry_run
    from mindbatch.replicas.meeting_place import needs_world
    from mindbatch.replicas.start import job_plan

    has_worlds = needs_world(setup, config.model, config.runtime)
    host, _ = setup.place.meeting
    plan = job_plan(setup, (host, 0), config.runtime.device_target, has_worlds=has_worlds)
    logs = Path(config.launch.log_dir or "(temporary folder)")
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return _tell([*dry_run(setup, plan, command, logs)])


def _tell(lines: list[str]) -> int:
    print(*lines, sep="\n", file=data_output(), flush=True)
    return EXIT_DONE


def _serve(config: ModelTaskConfig, setup: JobSetup) -> int:
    from mindbatch.replicas.load import node_logs
    from mindbatch.replicas.meeting_place import refuse_apart
    from mindbatch.replicas.node_agent import serve_node

    refuse_apart(setup, config.model, config.runtime, config.launch.max_restarts)
    ranks, (host, port) = setup.place.ranks, setup.place.meeting
    where = "on this host" if setup.place.is_on_one_host else f"at {host}:{port}"
    say(f"node {setup.place.node}: ranks {ranks.start} to {ranks.stop - 1} for node 0 {where}")
    return serve_node(setup, node_logs(config, setup))
