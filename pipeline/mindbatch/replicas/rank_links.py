"""Both ends of the connections between the coordinator and the rank processes."""

import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, NoReturn

from mindbatch.engine.engine import StepEngine, StepResult
from mindbatch.engine.request import Request
from mindbatch.io.errors import EXIT_FAILED, PromptError
from mindbatch.io.screen_text import say
from mindbatch.parallel.connection import (
    Address,
    JobListener,
    MessageConnection,
    MessageError,
    RankMessage,
    encoded,
)
from mindbatch.replicas.agent import AGENT
from mindbatch.replicas.messages import (
    ABORT,
    ADD,
    BEAT,
    HELLO,
    NOTICE,
    STEP,
    request_of,
    result_fields,
)


class Arrival(NamedTuple):
    """A rank's message; None is that its connection has ended."""

    rank: int
    message: RankMessage | None


class _Link:
    """A connection with a thread that sends its messages, as a stopped rank receives none for long."""

    def __init__(self, connection: MessageConnection) -> None:
        self._connection = connection
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        threading.Thread(target=self._send, name="to a rank", daemon=True).start()

    def send(self, content: bytes) -> None:
        """Queues a message; their number is bounded by the requests that are dispatched to a rank."""
        self._outgoing.put(content)

    def close(self) -> None:
        """Ends the connection and the thread, which may be amid a message."""
        self._outgoing.put(None)
        self._connection.close()

    def _send(self) -> None:
        try:
            while (content := self._outgoing.get()) is not None:
                self._connection.send_encoded(content)
        except OSError:  # that the rank has gone its reader tells
            self._connection.close()


class RankLinks:
    """The coordinator's connections to ranks, one for each; those of earlier attempts are not read.

    Agents connect to the same address; `next_agent` returns their connections.

    host, port: see `JobListener`. takes_agents: accepts agents until `refuse_agents` is called.
    """

    def __init__(
        self, host: str, key: bytes, world_size: int, port: int = 0, *, takes_agents: bool = False
    ) -> None:
        self.world_size, self._takes_agents = world_size, takes_agents
        self._agents: SimpleQueue[tuple[MessageConnection, RankMessage]] = SimpleQueue()
        self._arrivals: SimpleQueue[tuple[int, Arrival]] = SimpleQueue()  # with the attempt
        self._attempts = [0] * world_size
        self._connections: dict[int, _Link] = {}
        self._changing = threading.Lock()
        self._listener = JobListener(host, key, self._serve, port)

    @property
    def address(self) -> Address:
        return self._listener.address

    def next(self, seconds: float) -> Arrival | None:
        """Returns the next message of a running attempt; None if none comes in time."""
        while True:
            try:
                attempt, arrival = self._arrivals.get(timeout=seconds)
            except Empty:
                return None
            if attempt == self._attempts[arrival.rank]:
                return arrival

    def next_agent(self, seconds: float) -> tuple[MessageConnection, RankMessage] | None:
        """Returns the next agent's connection and first message; None if none comes in time."""
        with suppress(Empty):
            return self._agents.get(timeout=seconds)
        return None

    def refuse_agents(self) -> None:
        """Accepts no more agents, and closes the connections that `next_agent` has not returned."""
        with self._changing, suppress(Empty):
            self._takes_agents = False
            while True:
                self._agents.get_nowait()[0].close()

    def send(self, rank: int, kind: str, **fields: Any) -> None:
        """Sends a message to a rank, unless its connection has ended, which `next` returns."""
        connection = self._connections.get(rank)
        if connection is not None:
            connection.send(encoded(kind, fields))

    def renew(self, ranks: Iterable[int], attempt: int) -> None:
        """Forgets the connections of ranks; from now on those of another attempt are taken."""
        with self._changing:
            for rank in ranks:
                self._attempts[rank] = attempt
                connection = self._connections.pop(rank, None)
                if connection is not None:
                    connection.close()

    def close(self) -> None:
        """Ends all connections: a rank process ends with its own."""
        self._listener.close()
        with self._changing:
            for connection in self._connections.values():
                connection.close()

    def _serve(self, connection: MessageConnection) -> None:
        """Serves a connection in a thread of its own; its first message is HELLO or AGENT."""
        with suppress(EOFError, OSError, MessageError):
            hello = connection.receive()
            with self._changing:
                if hello.kind == AGENT and self._takes_agents:
                    self._agents.put((connection, hello))
                    return
            rank: Any = hello.fields.get("rank")
            attempt: Any = hello.fields.get("attempt")
            known = isinstance(rank, int) and isinstance(attempt, int) and hello.kind == HELLO
            if known and self._is_expected(rank, attempt, connection):
                self._pass_on(rank, attempt, hello, connection)
        connection.close()

    def _pass_on(self, rank: int, attempt: int, message: RankMessage, connection: MessageConnection) -> None:
        """Puts a first message and all later ones into the queue, and the end of the connection."""
        try:
            while True:
                self._arrivals.put((attempt, Arrival(rank, message)))
                message = connection.receive()
        finally:
            self._arrivals.put((attempt, Arrival(rank, None)))

    def _is_expected(self, rank: int, attempt: int, connection: MessageConnection) -> bool:
        """Takes the connection if it is the first of a rank's living attempt."""
        with self._changing:
            known = 0 <= rank < len(self._attempts) and rank not in self._connections
            if not known or attempt != self._attempts[rank]:
                return False
            self._connections[rank] = _Link(connection)
            return True


BEAT_SECONDS = 1.0
LOADING, WAITING, COMPILING, STEPPING, IDLE = "loading", "waiting", "compiling", "step", "idle"


class CoordinatorLink:
    """A rank's connection to the coordinator. When it ends, this process ends at once."""

    def __init__(self, connection: MessageConnection, hello: Mapping[str, Any]) -> None:
        """`hello`: fields of the first message, which identify this process."""
        self._connection = connection
        self._ended = threading.Event()
        self.send(HELLO, **hello)
        self._messages: SimpleQueue[RankMessage] = SimpleQueue()
        self._activity, self._since, self._steps = LOADING, time.monotonic(), 0
        for work in (self._read, self._beat):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a message; ends this process if nobody takes it."""
        try:
            self._connection.send(kind, **fields)
        except OSError as error:
            self._exit(error)

    def receive(self, *, wait: bool = True) -> RankMessage | None:
        """Returns the coordinator's next message; None if there is none and `wait` is False."""
        with suppress(Empty):
            return self._messages.get(block=wait)
        return None

    def begin(self, activity: str) -> None:
        """Sets the activity that heartbeats report."""
        self._steps += activity == STEPPING
        self._activity, self._since = activity, time.monotonic()

    def notice(self, text: str) -> None:
        """Reports what takes time to the coordinator; "" means that it is over. See `Notice`."""
        activity = text.partition(" ")[0]
        if activity in (LOADING, WAITING, COMPILING):
            self.begin(activity)
        elif self._activity == COMPILING:
            self.begin(STEPPING)
        self.send(NOTICE, text=text)

    def _read(self) -> None:
        try:
            while True:
                self._messages.put(self._connection.receive())
        except (EOFError, OSError, MessageError) as error:
            self._exit(error)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            seconds = time.monotonic() - self._since
            processor = round(time.process_time(), 3)
            self.send(
                BEAT,
                activity=self._activity,
                seconds=round(seconds, 3),
                steps=self._steps,
                processor_seconds=processor,
            )

    def _exit(self, error: Exception) -> None:
        """Ends this process from any thread."""
        if not self._ended.is_set():
            self._ended.set()
            say(f"the connection to the process that coordinates the job has ended ({error!r})")
        os._exit(EXIT_FAILED)


def serve(link: CoordinatorLink, engine: StepEngine) -> NoReturn:
    """Computes the coordinator's requests; does not return.

    Raises:
        Exception: a step failed.
        MessageError: the coordinator sent an unknown message.
    """
    while True:
        if not engine.has_work:
            link.begin(IDLE)
        while (message := link.receive(wait=not engine.has_work)) is not None:
            _answer(link, engine, message)
        link.begin(STEPPING)
        _send(link, engine, engine.step())


def _answer(link: CoordinatorLink, engine: StepEngine, message: RankMessage) -> None:
    if message.kind == ADD:
        for request in message.fields["requests"]:
            _add(link, engine, request_of(request))
    elif message.kind == ABORT:
        keys = message.fields["keys"]
        engine.abort(None if keys is None else set(keys))
        _send(link, engine, StepResult([], []))  # its load has changed
    else:
        raise MessageError(f"the coordinator sent {message.kind!r}, which a leader does not understand")


def _add(link: CoordinatorLink, engine: StepEngine, request: Request) -> None:
    try:
        engine.add(request)
    except PromptError as error:  # that the coordinator has not found: a grammar that took too long here
        _send(link, engine, StepResult([], [request.failure(error)]))


def _send(link: CoordinatorLink, engine: StepEngine, result: StepResult) -> None:
    link.send(STEP, statistics=asdict(engine.statistics), **result_fields(result))
