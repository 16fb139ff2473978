"""The front's connections to the rank processes: who is there, and what they send, in one queue."""

import threading
from collections.abc import Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from mindbatch.replicas.connection import (
    Address,
    JobListener,
    Message,
    MessageConnection,
    MessageError,
    encoded,
)
from mindbatch.replicas.messages import HELLO


class Arrival(NamedTuple):
    """A rank's message; None is that its connection has ended."""

    rank: int
    message: Message | None


class _Link:
    """A connection whose messages a thread of its own sends: a rank that is stopped takes none for long."""

    def __init__(self, connection: MessageConnection) -> None:
        self._connection = connection
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        threading.Thread(target=self._send, name="to a rank", daemon=True).start()

    def send(self, content: bytes) -> None:
        """Queues a message; what a rank has not taken is bounded by what it may be dealt."""
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
    """One connection for each rank; that of an attempt which is over is not read any more."""

    def __init__(self, host: str, key: bytes, world_size: int, port: int = 0) -> None:
        """`host`, `port`: see `JobListener`."""
        self._arrivals: SimpleQueue[tuple[int, Arrival]] = SimpleQueue()  # with the attempt
        self._attempts = [0] * world_size
        self._connections: dict[int, _Link] = {}
        self._changing = threading.Lock()
        self._listener = JobListener(host, key, self._serve, port)

    @property
    def address(self) -> Address:
        return self._listener.address

    def next(self, seconds: float) -> Arrival | None:
        """The next message of a living attempt; None if none has come in so many seconds."""
        while True:
            try:
                attempt, arrival = (
                    self._arrivals.get(timeout=seconds) if seconds else self._arrivals.get_nowait()
                )
            except Empty:
                return None
            if attempt == self._attempts[arrival.rank]:
                return arrival

    def send(self, rank: int, kind: str, **fields: Any) -> None:
        """Has a message sent to a rank. One that has gone gets nothing; that it has gone, `next` tells."""
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
        """The life of a connection, in a thread of its own: the hello first."""
        with suppress(EOFError, OSError, MessageError):
            hello = connection.receive()
            rank: Any = hello.fields.get("rank")
            attempt: Any = hello.fields.get("attempt")
            known = isinstance(rank, int) and isinstance(attempt, int) and hello.kind == HELLO
            if known and self._is_expected(rank, attempt, connection):
                self._pass_on(rank, attempt, hello, connection)
        connection.close()

    def _pass_on(self, rank: int, attempt: int, message: Message, connection: MessageConnection) -> None:
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
