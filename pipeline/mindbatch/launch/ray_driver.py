"""The driver of a job in a Ray cluster: a process of its own, for Ray takes over whichever it is used in."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindbatch.io.child_main import outlive_parent
from mindbatch.io.storage import TemporaryFolder
from mindbatch.launch.supervisor import EndedProcess

if TYPE_CHECKING:
    from mindbatch.launch.ray_place import ReplicaPlace, Room

_STORE_BYTES = 80 << 20  # nothing goes through Ray's store of objects; it takes no less
_TICK_SECONDS = 0.1
_LOCAL = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray would report to its makers
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}


def drive(connection: Connection, job_text: str) -> None:
    """Starts and ends ranks in a Ray cluster as it is told over the connection, and tells which have ended.

    given: JSON: `address` of the cluster, or null to start one here, which ends with this process;
    `world_size`; `room`: see `Room`.
    """
    job = json.loads(job_text)
    os.chdir(os.sep)  # its processes import from the folder that their driver is in
    with ExitStack() as stack:
        try:
            host, room = _connected(job, stack)
        except Exception as error:  # whatever Ray says
            _tell(connection, failed=str(error).strip().splitlines() or [repr(error)])
            return
        outlive_parent()  # the cluster is to be left as it was
        with suppress(EOFError, OSError):  # the job has ended
            _tell(connection, host=host)
            _serve(connection, _Ranks(room))


def _connected(job: Mapping[str, Any], stack: ExitStack) -> tuple[str, Room]:
    """The address of this machine in the cluster, which the stack leaves, and what a rank gets there."""
    import ray  # it takes a second, and only this process needs it
    import ray.util

    from mindbatch.launch.ray_place import Room

    room = Room(**job["room"])
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if job["address"] is None:
        options |= _own_cluster(room, job["world_size"], stack)
    ray.init(job["address"] or "local", **options)
    stack.callback(ray.shutdown)
    return ray.util.get_node_ip_address(), room


def _own_cluster(room: Room, world_size: int, stack: ExitStack) -> dict[str, Any]:
    """Options of a cluster of one node with room for all ranks, which leaves nothing behind."""
    os.environ.update({name: os.environ.get(name, value) for name, value in _LOCAL.items()})
    # Its sockets are in there, whose paths may have about a hundred characters.
    folder = stack.enter_context(TemporaryFolder("mb", Path("/tmp")))
    resources = {name: count * world_size for name, count in room.resources.items()}
    return {
        "num_cpus": int(resources.pop("CPU")),
        "resources": resources,
        "include_dashboard": False,
        "object_store_memory": _STORE_BYTES,
        "_temp_dir": str(folder),
    }


class _Ranks:
    """Ranks of the job that run, or are to run."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._places: dict[int, ReplicaPlace] = {}

    def start(self, name: str, replica: int, local_rank: int, variables: Mapping[str, str]) -> None:
        from mindbatch.launch.ray_place import ReplicaPlace

        if replica not in self._places:
            self._places[replica] = ReplicaPlace(self._room)
        self._places[replica].start(name, local_rank, variables)

    def ended(self) -> list[EndedProcess]:
        return [process for place in self._places.values() for process in place.ended()]

    def end(self, names: Collection[str] | None = None) -> None:
        from mindbatch.launch.ray_place import end_ranks

        ending = [name for place in self._places.values() for name in place.names] if names is None else names
        end_ranks(self._places.values(), ending)
        self._places = {replica: place for replica, place in self._places.items() if not place.forget(ending)}


def _serve(connection: Connection, ranks: _Ranks) -> None:
    """Until the other end is closed."""
    try:
        while True:
            if connection.poll(_TICK_SECONDS):
                asked = json.loads(connection.recv_bytes())
                if asked["do"] == "start":
                    ranks.start(**asked["process"])
                else:
                    ranks.end(asked["names"])
                    _tell(connection, gone=asked["number"])
            for ended in ranks.ended():
                _tell(connection, ended=ended)
    finally:
        ranks.end()


def _tell(connection: Connection, **fields: Any) -> None:
    connection.send_bytes(json.dumps(fields).encode())
