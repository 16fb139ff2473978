"""Ranks in a Ray cluster: for each replica a placement group, and in each of its bundles a rank's actor."""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from mindbatch.io.children import command
from mindbatch.io.storage import TemporaryFolder
from mindbatch.launch.job_ranks import NodeProcesses
from mindbatch.launch.process_plan import ProcessSpec
from mindbatch.launch.supervisor import EndedProcess, Supervisor

SCHEDULING_SECONDS = 60.0
"""Seconds that Ray may take to schedule a rank and start its actor."""
_SECONDS_OF_A_CALL = 1.0
_SECONDS_TO_END = 5.0
_TICK_SECONDS = 0.1


class RankHost:
    """Ray actor that hosts processes on the node that Ray has chosen for it; they end when it does.

    logs: a folder for their logs, which is made where it is not there; None is a temporary one.
    """

    def __init__(self, logs: str | None) -> None:
        self._temporary = TemporaryFolder() if logs is None else None
        folder = Path(logs or "") if self._temporary is None else self._temporary.path
        folder.mkdir(parents=True, exist_ok=True)
        self._supervisor = Supervisor(folder)

    def start(self, name: str, program: tuple[str, str], variables: Mapping[str, str]) -> None:
        """Starts a function of this package, given by module and name, as a process.

        variables: of its environment, beside those of this process.

        Raises:
            MindBatchError: it cannot be started.
        """
        module, function = program
        called = command(getattr(import_module(module), function))
        self._supervisor.start(name, called, {**os.environ, **variables})

    def ended(self, seconds: float) -> list[EndedProcess]:
        """Lists ended processes that were not reported yet, waiting for so long at most."""
        deadline = time.monotonic() + seconds
        while not (processes := self._supervisor.ended()) and time.monotonic() < deadline:
            time.sleep(_TICK_SECONDS)
        return processes

    def end(self) -> None:
        self._supervisor.end()
        if self._temporary is not None:
            self._temporary.remove()


class ReplicaPlacementGroup(NamedTuple):
    """Settings of the placement group of a replica, whose ranks Ray schedules together.

    num_ranks: of a replica. resources: of each rank. logs: see `RankHost`. program: module and function.
    """

    num_ranks: int
    resources: dict[str, float]
    logs: str | None
    program: tuple[str, str]


@dataclass
class _Host:
    """A rank's actor. starting, pending_call: calls of it that are not answered yet."""

    spec: ProcessSpec
    deadline: float
    actor: Any = None
    starting: Any = None
    pending_call: Any = None
    is_reported: bool = False


class RayProcesses(NodeProcesses):
    """The ranks of a job in the cluster that this process is connected to, as those of one node.

    Those of a replica are started as soon as Ray has resources for all of them. Only `end` waits for Ray.
    """

    def __init__(self, group: ReplicaPlacementGroup) -> None:
        self._settings = group
        self._hosts: dict[str, _Host] = {}
        self._groups: dict[int, Any] = {}  # placement groups, by replica; none without ranks

    def start_specs(self, specs: Sequence[ProcessSpec]) -> None:
        for spec in specs:
            if spec.replica not in self._groups:
                self._groups[spec.replica] = self._new_group()
            host = self._hosts[spec.name] = _Host(spec, time.monotonic() + SCHEDULING_SECONDS)
            self._call(host)

    def ended(self) -> list[EndedProcess]:
        """Lists the ranks that have ended or cannot be started, each once."""
        processes = []
        for host in self._hosts.values():
            ended = None if host.is_reported else self._end_of(host)
            if ended is not None:
                host.is_reported = True
                processes.append(ended)
        return processes

    def end(self, names: Collection[str] | None = None) -> None:
        """Ends ranks and waits for it where their nodes answer; Ray kills the others."""
        chosen = [*self._hosts] if names is None else names
        ending = [self._hosts.pop(name) for name in chosen if name in self._hosts]
        with suppress(RayError):
            calls = [host.actor.end.remote() for host in ending]
            if calls:
                ray.wait(calls, num_returns=len(calls), timeout=_SECONDS_TO_END)
        for host in ending:
            _kill(host)
        for replica in self._groups.keys() - {host.spec.replica for host in self._hosts.values()}:
            _remove(self._groups.pop(replica))

    def close(self) -> None:
        self.end()

    def _new_group(self) -> Any:
        return placement_group([self._settings.resources] * self._settings.num_ranks, strategy="PACK")

    def _call(self, host: _Host) -> None:
        resources = dict(self._settings.resources)
        bundle = host.spec.rank % self._settings.num_ranks
        group = self._groups[host.spec.replica]
        in_bundle = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        options = {"num_cpus": resources.pop("CPU"), "resources": resources, "scheduling_strategy": in_bundle}
        host.actor = ray.remote(RankHost).options(**options).remote(self._settings.logs)
        variables = dict(host.spec.variables)
        host.starting = host.actor.start.remote(host.spec.name, self._settings.program, variables)

    def _end_of(self, host: _Host) -> EndedProcess | None:
        """Reports how a rank has ended, or why it is missing; None while it is to be started, or runs."""
        try:
            return self._look_at(host)
        except RayActorError as error:
            if (
                host.starting is not None
                and not error.actor_init_failed
                and time.monotonic() <= host.deadline
            ):
                self._restart_on_other_nodes(host.spec.replica)  # on a node that Ray did not know to be dead
                return None
            exit_reason = f"ended with its Ray actor or node ({_last_line(error)})"
        except RayError as error:
            exit_reason = f"ended with an error of Ray ({_last_line(error)})"
        return EndedProcess(host.spec.name, exit_reason, (), is_lost=True)

    def _look_at(self, host: _Host) -> EndedProcess | None:
        if host.starting is not None:
            if not _is_done(host.starting):
                return self._unschedulable(host) if time.monotonic() > host.deadline else None
            ray.get(host.starting)
            host.starting = None
        if host.pending_call is None:
            host.pending_call = host.actor.ended.remote(_SECONDS_OF_A_CALL)
        if not _is_done(host.pending_call):
            return None
        ended = ray.get(host.pending_call)
        host.pending_call = None
        return ended[0] if ended else None

    def _restart_on_other_nodes(self, replica: int) -> None:
        """Restarts a replica of which no rank has started yet: all start at once."""
        hosts = [host for host in self._hosts.values() if host.spec.replica == replica]
        for host in hosts:
            _kill(host)
        _remove(self._groups[replica])
        self._groups[replica] = self._new_group()
        for host in hosts:
            self._call(host)

    def _unschedulable(self, host: _Host) -> EndedProcess:
        free = ray.available_resources()
        needs = " and ".join(f"{count:g} {kind}" for kind, count in self._settings.resources.items())
        there = " and ".join(f"{free.get(kind, 0):g} {kind}" for kind in self._settings.resources)
        return EndedProcess(
            host.spec.name,
            f"was not started: the Ray cluster has had no free resources for {SCHEDULING_SECONDS:.0f} s; a "
            f"replica of {self._settings.num_ranks} needs {needs} for each rank, and {there} are free in the "
            "whole cluster",
            (),
            is_lost=True,
        )


def _is_done(call: Any) -> bool:
    return bool(ray.wait([call], timeout=0)[0])


def _kill(host: _Host) -> None:
    with suppress(RayError):
        ray.kill(host.actor)


def _remove(group: Any) -> None:
    with suppress(RayError):
        remove_placement_group(group)


def _last_line(error: Exception) -> str:
    """Returns the last line of an exception: the cause, where Ray shows a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
