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

SECONDS_FOR_ROOM = 60.0
"""So long Ray may take to find room for a rank and start its actor."""
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
        """Lists ended processes that were not told yet, waiting for so long at most."""
        deadline = time.monotonic() + seconds
        while not (processes := self._supervisor.ended()) and time.monotonic() < deadline:
            time.sleep(_TICK_SECONDS)
        return processes

    def end(self) -> None:
        self._supervisor.end()
        if self._temporary is not None:
            self._temporary.remove()


class Room(NamedTuple):
    """Ray resources of a rank, the folder for its log (see `RankHost`), its program: module, function.

    num_ranks: of a replica, which are placed together.
    """

    num_ranks: int
    resources: dict[str, float]
    logs: str | None
    program: tuple[str, str]


@dataclass
class _Host:
    """A rank's actor. starting, asked: calls of it that are not answered yet."""

    spec: ProcessSpec
    deadline: float
    actor: Any = None
    starting: Any = None
    asked: Any = None
    is_told: bool = False


class RayProcesses(NodeProcesses):
    """The ranks of a job in the cluster that this process is connected to, as those of one node.

    Those of a replica are started as soon as Ray has found room for all of them. Only `end` waits for Ray.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._hosts: dict[str, _Host] = {}
        self._groups: dict[int, Any] = {}  # placement groups, by replica; none without ranks

    def start_specs(self, specs: Sequence[ProcessSpec]) -> None:
        for spec in specs:
            if spec.replica not in self._groups:
                self._groups[spec.replica] = self._new_group()
            host = self._hosts[spec.name] = _Host(spec, time.monotonic() + SECONDS_FOR_ROOM)
            self._call(host)

    def ended(self) -> list[EndedProcess]:
        """The ranks that have ended or cannot be started, each told once."""
        processes = []
        for host in self._hosts.values():
            ended = None if host.is_told else self._end_of(host)
            if ended is not None:
                host.is_told = True
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
        return placement_group([self._room.resources] * self._room.num_ranks, strategy="PACK")

    def _call(self, host: _Host) -> None:
        resources = dict(self._room.resources)
        bundle = host.spec.rank % self._room.num_ranks
        group = self._groups[host.spec.replica]
        in_bundle = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        options = {"num_cpus": resources.pop("CPU"), "resources": resources, "scheduling_strategy": in_bundle}
        host.actor = ray.remote(RankHost).options(**options).remote(self._room.logs)
        variables = dict(host.spec.variables)
        host.starting = host.actor.start.remote(host.spec.name, self._room.program, variables)

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
                self._place_anew(host.spec.replica)  # on a node that Ray did not know to be dead
                return None
            how = f"ended with its Ray actor or node ({_last_line(error)})"
        except RayError as error:
            how = f"ended with an error of Ray ({_last_line(error)})"
        return EndedProcess(host.spec.name, how, (), is_lost=True)

    def _look_at(self, host: _Host) -> EndedProcess | None:
        if host.starting is not None:
            if not _is_done(host.starting):
                return self._without_room(host) if time.monotonic() > host.deadline else None
            ray.get(host.starting)
            host.starting = None
        if host.asked is None:
            host.asked = host.actor.ended.remote(_SECONDS_OF_A_CALL)
        if not _is_done(host.asked):
            return None
        ended = ray.get(host.asked)
        host.asked = None
        return ended[0] if ended else None

    def _place_anew(self, replica: int) -> None:
        """Only while no rank of the replica has been started: they are started in turn at once."""
        hosts = [host for host in self._hosts.values() if host.spec.replica == replica]
        for host in hosts:
            _kill(host)
        _remove(self._groups[replica])
        self._groups[replica] = self._new_group()
        for host in hosts:
            self._call(host)

    def _without_room(self, host: _Host) -> EndedProcess:
        free = ray.available_resources()
        room = " and ".join(f"{count:g} {kind}" for kind, count in self._room.resources.items())
        there = " and ".join(f"{free.get(kind, 0):g} {kind}" for kind in self._room.resources)
        return EndedProcess(
            host.spec.name,
            f"was not started: no room in the Ray cluster: none came free in {SECONDS_FOR_ROOM:.0f} s; a "
            f"replica of {self._room.num_ranks} needs {room} for each rank, and {there} are free in the "
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
