"""An agent: starts and watches the rank processes of one node for the front, which is on another."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, MindBatchError
from mindbatch.io.screen_text import say
from mindbatch.launch.job_ranks import LocalProcesses, NodeProcesses
from mindbatch.launch.process_plan import JOB_KEY, RANK, ProcessSpec, job_key
from mindbatch.launch.started_as import started_as
from mindbatch.launch.supervisor import EndedProcess
from mindbatch.parallel.connection import Address, Message, MessageConnection, MessageError, connect

AGENT, START, END, CLOSE, GONE, ENDED, ALIVE = "agent", "start", "end", "close", "gone", "ended", "alive"
SHARED, LEFT = "shared", "left"
"""Kinds. From an agent: AGENT first, GONE (what END named has), ENDED, ALIVE, LEFT (its copy of a script has
closed the model). To it: START, END, CLOSE, SHARED (what rank 0 of a script has; see `shared_engine`)."""

ALIVE_SECONDS = 5.0
"""Between two signs of life: what is not acknowledged ends the connection (see `connection`)."""

_TICK_SECONDS = 0.2
_CONNECT_SECONDS = 600.0
_BETWEEN_TRIES = 0.5


class FrontLost(MindBatchError):
    """The process that coordinates the job has gone before it said that the job is over."""


def patient_connection(
    meeting: Address,
    key: bytes,
    seconds: float = _CONNECT_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> MessageConnection:
    """A connection to the front, which may not have been started yet.

    Raises:
        MindBatchError: nobody has listened there in all that time, or somebody with another key.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return connect(meeting, key)
        except OSError as error:
            problem = error.strerror or str(error)
            if error.errno is None and isinstance(error, ConnectionError):  # of `connect`, not of the system
                raise MindBatchError(
                    f"launch: who listens at {meeting[0]}:{meeting[1]} has another {JOB_KEY}, or is not of "
                    "MindBatch; every node needs the same key, and a port that nobody else uses"
                ) from error
        if time.monotonic() >= deadline:
            raise MindBatchError(
                f"launch: node 0 was not found at {meeting[0]}:{meeting[1]} in {seconds:.0f} s ({problem}); "
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
    shared: SimpleQueue[Message | None] | None = None,
) -> int:
    """Does what the front says until the job is over; returns the exit code.

    table: digest of the rank table here; empty without one. device_offset: devices of this host that other
    agents' ranks have. shared: takes the messages of that kind, and None when the front has gone; without it
    none are wanted.

    Raises:
        FrontLost: as it says. The processes have been ended.
    """
    messages: SimpleQueue[Message | None] = SimpleQueue()
    place = [ranks.start, ranks.stop]
    host = socket.gethostname()
    follows = shared is not None
    connection.send(AGENT, ranks=place, world=world, host=host, pid=os.getpid(), table=table, follows=follows)
    reading = (connection, messages, shared)
    threading.Thread(target=_read, args=reading, name="agent reader", daemon=True).start()
    try:
        return _Agent(connection, processes, key, device_offset).run(messages)
    except OSError as error:
        raise FrontLost(
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

    def run(self, messages: SimpleQueue[Message | None]) -> int:
        while True:
            with suppress(Empty):
                message = messages.get(timeout=_TICK_SECONDS)
                if message is None:
                    raise ConnectionError("the front has gone")
                if message.kind == CLOSE:
                    return EXIT_DONE
                self._obey(message)
            self._report()

    def _obey(self, message: Message) -> None:
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
        """The key of the job does not travel: it is here already."""
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
    messages: SimpleQueue[Message | None],
    shared: SimpleQueue[Message | None] | None,
) -> None:
    with suppress(EOFError, OSError, MessageError):
        while True:
            message = connection.receive()
            (shared if shared is not None and message.kind == SHARED else messages).put(message)
    messages.put(None)
    if shared is not None:
        shared.put(None)


def main(text: str) -> int:
    """Serves one rank until the job is over; returns the exit code. text: the job as JSON."""
    try:
        copy = started_as(os.environ)
        if copy is not None and copy.is_scheduler:
            return EXIT_DONE
        todo = json.loads(text)
        os.chdir(todo["folder"])
        key = job_key(os.environ, is_shared=True)
        number = 0 if copy is None else copy.rank  # msrun counts through all nodes, mpirun on this one
        rank = number if copy is not None and copy.launcher == "msrun" else todo["first_rank"] + number
        connection = patient_connection(tuple(todo["meeting"]), key)
        processes = LocalProcesses(todo["commands"], Path(todo["logs"]), has_tables=bool(todo["table"]))
        return serve(connection, processes, key, range(rank, rank + 1), todo["world_size"], todo["table"])
    except (MindBatchError, OSError) as error:
        say(*(error.lines if isinstance(error, MindBatchError) else [str(error)]))
        return EXIT_FAILED
