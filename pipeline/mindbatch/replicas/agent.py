"""An agent: starts and watches the rank processes of one node for the coordinator, which is on another."""

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from mindbatch.io.errors import EXIT_DONE, MindBatchError
from mindbatch.launch.job_ranks import NodeProcesses
from mindbatch.launch.process_plan import JOB_KEY, RANK, ProcessSpec
from mindbatch.launch.supervisor import EndedProcess
from mindbatch.parallel.connection import Address, MessageConnection, MessageError, RankMessage, connect

AGENT, START, END, CLOSE, GONE, ENDED, ALIVE = "agent", "start", "end", "close", "gone", "ended", "alive"
SHARED, LEFT = "shared", "left"
"""Kinds. From an agent: AGENT first, GONE (what END named has), ENDED, ALIVE, LEFT (its copy of a script has
closed the model). To it: START, END, CLOSE, SHARED (what rank 0 of a script has; see `shared_engine`)."""

ALIVE_SECONDS = 5.0
"""Seconds between two messages ALIVE: one that is not acknowledged ends the connection."""

_TICK_SECONDS = 0.2
_CONNECT_SECONDS = 600.0
_BETWEEN_TRIES = 0.5


class CoordinatorLost(MindBatchError):
    """The coordinator ended before it reported the end of the job."""


def patient_connection(
    address: Address,
    key: bytes,
    seconds: float = _CONNECT_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> MessageConnection:
    """Connects to the coordinator, which may not have been started yet.

    Raises:
        MindBatchError: no process listened there in all that time, or one with another key.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return connect(address, key)
        except OSError as error:
            problem = error.strerror or str(error)
            if error.errno is None and isinstance(error, ConnectionError):  # of `connect`, not of the system
                raise MindBatchError(
                    f"launch: the process at {address[0]}:{address[1]} has another {JOB_KEY}, or is not of "
                    "MindBatch; every node needs the same key, and a port that nobody else uses"
                ) from error
        if time.monotonic() >= deadline:
            raise MindBatchError(
                f"launch: node 0 was not found at {address[0]}:{address[1]} in {seconds:.0f} s ({problem}); "
                "start the same command there, with the same launch.master_addr, launch.master_port and "
                f"{JOB_KEY}"
            )
        sleep(_BETWEEN_TRIES)


def serve(
    connection: MessageConnection,
    processes: NodeProcesses,
    key: bytes,
    ranks: range,
    world: int,
    table: str = "",
    device_offset: int = 0,
    shared: SimpleQueue[RankMessage | None] | None = None,
) -> int:
    """Follows the coordinator's messages until the job is over; returns the exit code.

    table: digest of the rank table here; empty without one.
    device_offset: number of devices of this host that ranks of other agents have.
    shared: receives the messages SHARED, and None when the connection ends; None if this agent wants none.

    Raises:
        CoordinatorLost: the connection has ended; the processes have been ended too.
    """
    messages: SimpleQueue[RankMessage | None] = SimpleQueue()
    span = [ranks.start, ranks.stop]
    host = socket.gethostname()
    follows = shared is not None
    connection.send(AGENT, ranks=span, world=world, host=host, pid=os.getpid(), table=table, follows=follows)
    reading = (connection, messages, shared)
    threading.Thread(target=_read, args=reading, name="agent reader", daemon=True).start()
    try:
        return _Agent(connection, processes, key, device_offset).run(messages)
    except OSError as error:
        raise CoordinatorLost(
            "launch: the connection to node 0 has ended; the processes here have been ended"
        ) from error
    finally:
        processes.close()
        connection.close()


@dataclass
class _Agent:
    connection: MessageConnection
    processes: NodeProcesses
    key: bytes
    device_offset: int
    next_sign: float = 0.0

    def run(self, messages: SimpleQueue[RankMessage | None]) -> int:
        while True:
            with suppress(Empty):
                message = messages.get(timeout=_TICK_SECONDS)
                if message is None:
                    raise ConnectionError("the coordinator has gone")
                if message.kind == CLOSE:
                    return EXIT_DONE
                self._obey(message)
            self._report()

    def _obey(self, message: RankMessage) -> None:
        if message.kind == START:
            for process in message.fields["processes"]:
                self._start(self._spec(process))
        elif message.kind == END:
            self.processes.end(message.fields["names"])
            self.connection.send(GONE, number=message.fields["number"])

    def _start(self, spec: ProcessSpec) -> None:
        try:
            self.processes.start_specs([spec])
        except MindBatchError as error:
            self._tell(EndedProcess(spec.name, "was not started", tuple(error.lines), is_lost=True))

    def _spec(self, fields: dict[str, Any]) -> ProcessSpec:
        """Returns the spec of a process, with the job's key, which messages do not have."""
        variables = {**fields["variables"], JOB_KEY: self.key.hex()}
        variables["DEVICE_ID"] = str(int(variables["DEVICE_ID"]) + self.device_offset)
        return ProcessSpec(str(fields["name"]), RANK, int(fields["replica"]), int(fields["rank"]), variables)

    def _tell(self, ended: EndedProcess) -> None:
        self.connection.send(ENDED, **ended._asdict())

    def _report(self) -> None:
        for ended in self.processes.ended():
            self._tell(ended)
        if time.monotonic() >= self.next_sign:
            self.connection.send(ALIVE)
            self.next_sign = time.monotonic() + ALIVE_SECONDS


def _read(
    connection: MessageConnection,
    messages: SimpleQueue[RankMessage | None],
    shared: SimpleQueue[RankMessage | None] | None,
) -> None:
    with suppress(EOFError, OSError, MessageError):
        while True:
            message = connection.receive()
            (shared if shared is not None and message.kind == SHARED else messages).put(message)
    messages.put(None)
    if shared is not None:
        shared.put(None)
