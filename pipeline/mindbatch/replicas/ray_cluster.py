"""The Ray cluster of a job: a child process, its driver, is the agent of all ranks, which run as Ray's
actors.

The driver is a process of its own, as Ray takes over the process it is used in.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindbatch.io.child_main import outlive_parent
from mindbatch.io.children import Child
from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.io.regular_file import open_own, open_regular
from mindbatch.io.storage import TemporaryFolder
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.agent import CoordinatorLost, patient_connection, serve

if TYPE_CHECKING:
    from mindbatch.launch.ray_placement import RayProcesses
    from mindbatch.parallel.connection import Address

_SECONDS_TO_CONNECT = 120.0
_SECONDS_TO_ANSWER = 5.0
_SECONDS_TO_END = 10.0
_SHOWN_BYTES, _SHOWN_LINES = 4096, 5
_STORE_BYTES = 80 << 20  # nothing goes through Ray's store of objects; it takes no less
_LOCAL = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray would report to its makers
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}


class RayCluster:
    """A Ray cluster as the coordinating process sees it: started or found, its driver an agent of all ranks.

    A cluster that was started for the job ends with it. Each replica has a placement group, each rank an
    actor in it, on any node with free resources; when an actor or its node dies, the rank has ended.

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
        self._log = log
        _refuse_deaf(address)
        placement_group = {
            "num_ranks": topology.replica_size,
            "resources": dict(resources),
            "logs": None if logs is None else str(logs.absolute()),
            "program": (program.__module__, program.__name__),
        }
        job = {"address": address, "world_size": topology.world_size, "placement_group": placement_group}
        output = open_own(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self._driver = Child(drive, json.dumps(job), stderr=output)
        finally:
            os.close(output)
        self.end = weakref.finalize(self, _end, self._driver, os.getpid())
        """Ends the driver, and the cluster that it has started; may be called again."""
        self.host = self._connected(address)
        """The address of this machine, by which the nodes of the cluster know it."""

    def start(self, address: Address, key: bytes) -> None:
        """Lets the driver connect to `address` as an agent. key: the key of the job."""
        with suppress(OSError):  # it has ended: `check` tells
            self._driver.connection.send_bytes(json.dumps({"address": address, "key": key.hex()}).encode())

    def check(self) -> None:
        """Raises MindBatchError where the driver has ended."""
        if self._driver.process.poll() is not None:
            reason, *lines = self._death()
            raise MindBatchError([f"launch=ray: {reason}", *lines])

    def loss(self) -> list[str]:
        """Explains how the ranks were lost with the driver; see `RemoteNode.loss`."""
        reason, *lines = self._death()
        return [f"was lost: {reason}", *lines]

    def _death(self) -> list[str]:
        return [f"the job's Ray driver: {self._driver.death()}", *_last_lines(self._log)]

    def _connected(self, address: str | None) -> str:
        message: dict[str, Any] = {"failed": ["it has not answered in time"]}
        try:
            if self._driver.connection.poll(_SECONDS_TO_CONNECT):
                message = json.loads(self._driver.connection.recv_bytes())
        except (EOFError, OSError):
            message = {"failed": self._death()}
        if "host" in message:
            return str(message["host"])
        self.end()
        where = "no Ray cluster on this machine" if address is None else f"the Ray cluster {address}"
        reason, *lines = message["failed"]
        raise MindBatchError([f"launch=ray: {where}: {reason}", *lines])


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


def drive(connection: Connection, job_text: str) -> None:
    """Runs the driver: connects to a Ray cluster and serves the coordinator as the agent of all ranks.

    job_text: JSON with `address` of the cluster, or null to start one here, which ends with this process;
        `world_size`; `placement_group`, the fields of a replica's placement group.
    connection: the driver sends `host` or `failed`, and receives `address` and `key`.
    """
    job = json.loads(job_text)
    os.chdir(os.sep)  # its processes import from the folder that their driver is in
    with ExitStack() as stack:
        try:
            host, processes = _joined(job, stack)
        except Exception as error:  # whatever Ray says
            _tell(connection, failed=str(error).strip().splitlines() or [repr(error)])
            return
        outlive_parent()  # the cluster is to be left as it was
        with suppress(EOFError, OSError, CoordinatorLost):  # the job has ended
            _tell(connection, host=host)
            todo = json.loads(connection.recv_bytes())
            key, world_size = bytes.fromhex(todo["key"]), job["world_size"]
            coordinator = patient_connection(tuple(todo["address"]), key)
            serve(coordinator, processes, key, range(world_size), world_size)


def _joined(job: Mapping[str, Any], stack: ExitStack) -> tuple[str, RayProcesses]:
    """Returns the address of this machine in the cluster, which the stack leaves, and the job's ranks
    there."""
    import ray  # it takes a second, and only this process needs it
    import ray.util

    from mindbatch.launch.ray_placement import RayProcesses, ReplicaPlacementGroup

    group = ReplicaPlacementGroup(**job["placement_group"])
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if job["address"] is None:
        options |= _own_cluster(group.resources, job["world_size"], stack)
    ray.init(job["address"] or "local", **options)
    stack.callback(ray.shutdown)
    return ray.util.get_node_ip_address(), RayProcesses(group)


def _own_cluster(resources: Mapping[str, float], world_size: int, stack: ExitStack) -> dict[str, Any]:
    """Returns options of a cluster of one node with resources for all ranks, which leaves nothing behind."""
    os.environ.update({name: os.environ.get(name, value) for name, value in _LOCAL.items()})
    # Its sockets are in there, whose paths may have about a hundred characters.
    folder = stack.enter_context(TemporaryFolder("mb", Path("/tmp")))
    counts = {name: count * world_size for name, count in resources.items()}
    return {
        "num_cpus": int(counts.pop("CPU")),
        "resources": counts,
        "include_dashboard": False,
        "object_store_memory": _STORE_BYTES,
        "_temp_dir": str(folder),
    }


def _tell(connection: Connection, **fields: Any) -> None:
    connection.send_bytes(json.dumps(fields).encode())
