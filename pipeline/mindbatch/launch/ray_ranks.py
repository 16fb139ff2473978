"""The rank processes of a job in a Ray cluster, as this process sees them: through the job's Ray driver."""

import json
import os
import socket
import subprocess
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindbatch.io.children import Child
from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.io.regular_file import open_own, open_regular
from mindbatch.launch.job_ranks import NodeProcesses
from mindbatch.launch.process_plan import ProcessSpec
from mindbatch.launch.ray_driver import drive
from mindbatch.launch.supervisor import EndedProcess
from mindbatch.parallel.topology import Topology

_SECONDS_TO_CONNECT = 120.0
_SECONDS_TO_ANSWER = 5.0
_SECONDS_TO_END = 10.0
_TICK_SECONDS = 0.1
_SHOWN_BYTES, _SHOWN_LINES = 4096, 5


class RayRanks(NodeProcesses):
    """The rank processes of a job in a Ray cluster, as those of one node (see `NodeProcesses`).

    A cluster that was started for the job ends with it. Each replica has a placement group, each rank an
    actor in it, on whichever node Ray has found room; when an actor or its node dies, the rank has ended.

    address: of the cluster; None is one that is started on this machine.
    topology: of the job. resources: of Ray's, for each rank. program: of a rank.
    log: takes what Ray prints. logs: a folder on all nodes for the logs of ranks; None are temporary ones.

    Raises:
        ConfigError: nobody listens at the address.
        MindBatchError: Ray does not get on with the cluster.
    """

    def __init__(
        self,
        address: str | None,
        topology: Topology,
        resources: Mapping[str, float],
        program: Callable[[], object],
        log: Path,
        logs: Path | None,
    ) -> None:
        self._log, self._topology = log, topology
        self._living: set[str] = set()
        self._told: list[EndedProcess] = []
        self._failure: list[str] = []
        self._asked = self._answered = 0
        _refuse_deaf(address)
        room = {
            "num_ranks": topology.replica_size,
            "resources": dict(resources),
            "logs": None if logs is None else str(logs.absolute()),
            "program": (program.__module__, program.__name__),
        }
        job = {"address": address, "world_size": topology.world_size, "room": room}
        output = open_own(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self._driver = Child(drive, json.dumps(job), stderr=output)
        finally:
            os.close(output)
        self._end_driver = weakref.finalize(self, _end, self._driver, os.getpid())
        self.host = self._connected(address)
        """The address of this machine, by which the nodes of the cluster know it."""

    def start_specs(self, specs: Sequence[ProcessSpec]) -> None:
        """Has ranks started; they count as living from now on."""
        for spec in specs:
            self._living.add(spec.name)
            process = {
                "name": spec.name,
                "replica": spec.replica,
                "local_rank": spec.rank % self._topology.replica_size,
                "variables": dict(spec.variables),
            }
            self._say("start", process=process)

    def ended(self) -> list[EndedProcess]:
        self._listen(0)
        processes, self._told = self._told, []
        if self._failure:
            how, *lines = self._failure
            processes += [
                EndedProcess(name, f"was lost: {how}", tuple(lines), is_lost=True)
                for name in sorted(self._living)
            ]
        processes = [process for process in processes if process.name in self._living]
        self._living -= {process.name for process in processes}
        return processes

    def end(self, names: Collection[str] | None = None) -> None:
        """Ends some, or all; they are gone when it returns, or Ray kills them when it sees their nodes."""
        ending = [*self._living] if names is None else [*names]
        self._begin_end(ending)
        deadline = time.monotonic() + _SECONDS_TO_END
        while not self._failure and self._answered < self._asked and time.monotonic() < deadline:
            self._listen(_TICK_SECONDS)
        self._living -= {*ending}
        self._told = [process for process in self._told if process.name in self._living]

    def begin_close(self) -> None:
        self._begin_end([*self._living])

    def close(self) -> None:
        """Ends all, and the driver with the cluster that it has started; it may be called again."""
        self.end()
        self._end_driver()

    def _begin_end(self, names: Sequence[str]) -> None:
        self._asked += 1
        self._say("end", names=names, number=self._asked)

    def _connected(self, address: str | None) -> str:
        message = self._said(_SECONDS_TO_CONNECT)
        if message is not None and "host" in message:
            return str(message["host"])
        self._end_driver()
        where = "no Ray cluster on this machine" if address is None else f"the Ray cluster {address}"
        faults = ["it has not answered in time"] if message is None else message["failed"]
        raise MindBatchError([f"launch=ray: {where}: {faults[0]}", *faults[1:]])

    def _listen(self, seconds: float) -> None:
        """Takes what the driver has said; waits so long if it has said nothing yet."""
        while not self._failure and (message := self._said(seconds)) is not None:
            seconds = 0
            if "failed" in message:
                self._failure = message["failed"]
            elif "gone" in message:
                self._answered = message["gone"]
            else:
                name, how, last_lines, is_lost = message["ended"]
                self._told.append(EndedProcess(name, how, tuple(last_lines), is_lost))

    def _said(self, seconds: float) -> dict[str, Any] | None:
        """The driver's next word; None if it has none in so many seconds. The last one is `failed`."""
        try:
            if not self._driver.connection.poll(seconds):
                return None
            message: dict[str, Any] = json.loads(self._driver.connection.recv_bytes())
            return message
        except (EOFError, OSError):
            return {"failed": [f"the job's Ray driver: {self._driver.death()}", *_last_lines(self._log)]}

    def _say(self, do: str, **fields: Any) -> None:
        with suppress(OSError):  # it has ended: `_said` tells
            self._driver.connection.send_bytes(json.dumps({"do": do, **fields}).encode())


def _end(driver: Child, owner: int) -> None:
    """The driver ends its ranks and its cluster when nobody listens to it any more."""
    if os.getpid() != owner:  # in a forked process it stays the parent's
        return
    driver.connection.close()
    with suppress(subprocess.TimeoutExpired):
        driver.process.wait(_SECONDS_TO_END)
    driver.end()


def _refuse_deaf(address: str | None) -> None:
    """Ray itself waits for minutes."""
    if address in (None, "auto", "local"):
        return
    host, _, port = str(address).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"launch=ray: no Ray cluster is at {address} ({error}); give launch.ray_address as host:port of "
            "its head, as ray start prints it"
        ) from error


def _last_lines(log: Path) -> list[str]:
    with suppress(OSError), open(open_regular(log), "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _SHOWN_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-_SHOWN_LINES:]
    return []
