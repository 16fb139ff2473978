"""Stand-ins for the driver of a Ray cluster (see `mindbatch.replicas.ray_cluster.drive`)."""

import json
import sys
from collections.abc import Collection, Sequence
from multiprocessing.connection import Connection
from typing import Any

from mindbatch.launch.job_ranks import NodeProcesses
from mindbatch.launch.process_plan import ProcessSpec
from mindbatch.launch.supervisor import EndedProcess
from mindbatch.replicas.agent import patient_connection, serve


def tell(connection: Connection, **fields: Any) -> None:
    connection.send_bytes(json.dumps(fields).encode())


class HastyProcesses(NodeProcesses):
    """They end with exit code 7 as soon as they are started, but for the first replica's."""

    def __init__(self) -> None:
        self._ended: list[EndedProcess] = []

    def start_specs(self, specs: Sequence[ProcessSpec]) -> None:
        for spec in specs:
            if spec.replica:
                line = json.dumps([spec.name, spec.replica, spec.rank, spec.variables["RANK_ID"]])
                self._ended.append(EndedProcess(spec.name, "exit code 7", (line,)))

    def ended(self) -> list[EndedProcess]:
        ended, self._ended = self._ended, []
        return ended

    def end(self, names: Collection[str] | None = None) -> None:
        pass

    def close(self) -> None:
        pass


def hasty(connection: Connection, job_text: str) -> None:
    tell(connection, host="10.0.0.7")
    todo, world_size = json.loads(connection.recv_bytes()), json.loads(job_text)["world_size"]
    key = bytes.fromhex(todo["key"])
    front = patient_connection(tuple(todo["address"]), key)
    serve(front, HastyProcesses(), key, range(world_size), world_size)


class DyingProcesses(HastyProcesses):
    """Their driver ends when any is to be started."""

    def start_specs(self, specs: Sequence[ProcessSpec]) -> None:
        print("the cluster is gone", file=sys.stderr)
        sys.exit(3)


def dying(connection: Connection, job_text: str) -> None:
    """Is there, and ends when it is told anything."""
    tell(connection, host="10.0.0.7")
    todo = json.loads(connection.recv_bytes())
    key = bytes.fromhex(todo["key"])
    serve(patient_connection(tuple(todo["address"]), key), DyingProcesses(), key, range(4), 4)


def gone(connection: Connection, job_text: str) -> None:
    """Ends before it has come as an agent."""
    tell(connection, host="10.0.0.7")
    print("the cluster is gone", file=sys.stderr)
    sys.exit(3)


def failing(connection: Connection, job_text: str) -> None:
    """Does not get on with the cluster."""
    tell(connection, failed=["Version mismatch: 1 and 2", json.loads(job_text)["address"]])
