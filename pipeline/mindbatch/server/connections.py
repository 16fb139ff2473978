"""Bounds the server's connections below its file descriptors; closes idle ones to accept new ones."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

IS_ADMITTED = "mindbatch.is_admitted"
"""Key of the scope of a request that the guard has admitted."""
_MAX_DESCRIPTORS = 1 << 16
MAX_ACCEPTED_AT_ONCE = 64
_CLOSED_SHARE = 8
"""One in so many connections is closed at a time."""
_READ_BYTES, _CHUNKED_READ_BYTES = 1 << 16, 1 << 12
"""Bytes read from a connection before other connections are read; a chunk may have a single byte."""


def allow_descriptors() -> int:
    """Raises this process's limit of open files; returns the number of connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [limit for limit in (hard, _MAX_DESCRIPTORS) if limit != resource.RLIM_INFINITY]
    if soft == resource.RLIM_INFINITY:
        soft = _MAX_DESCRIPTORS
    elif (limit := min(limits)) > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        soft = limit
    return max(1, soft // 2)


class Connection(H11Protocol):
    """One connection; `was_admitted` once the guard has admitted a request of it."""

    was_admitted = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._read_at_once(_READ_BYTES)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_chunked = any(name == b"transfer-encoding" for name, _ in self.headers or ())
        self._read_at_once(_CHUNKED_READ_BYTES if is_chunked else _READ_BYTES)

    def _read_at_once(self, num_bytes: int) -> None:
        if hasattr(self.transport, "max_size"):
            self.transport.max_size = num_bytes

    def on_response_complete(self) -> None:
        self.was_admitted = self.was_admitted or IS_ADMITTED in self.cycle.scope
        super().on_response_complete()

    @property
    def is_busy(self) -> bool:
        """True while an answer is computed or sent."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def descriptor(self) -> int:
        return int(self.transport.get_extra_info("socket").fileno())


class Listener(socket.socket):
    """A listening socket with at most `max_connections` connections.

    At the limit it closes idle connections, first those that were never admitted (also those before their
    first request or during the TLS handshake), the oldest first. If all are busy, it accepts none for a
    second.
    """

    max_connections = _MAX_DESCRIPTORS
    connections: Iterable[Any] = ()
    """Connections that uvicorn knows."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._accepted: dict[int, socket.socket] = {}  # by descriptor, the oldest first

    def listen(self, backlog: int = MAX_ACCEPTED_AT_ONCE) -> None:
        super().listen(socket.SOMAXCONN)  # the loop accepts `backlog` at once; others wait in the system

    def accept(self) -> tuple[socket.socket, Any]:
        """Raises OSError at the limit, as if descriptors were lacking; the loop then waits for a second."""
        if len(self._accepted) >= self.max_connections:
            self._forget_closed()
        if len(self._accepted) >= self.max_connections:
            self._shut_down_idle()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        accepted, address = super().accept()
        self._accepted.pop(accepted.fileno(), None)
        self._accepted[accepted.fileno()] = accepted
        return accepted, address

    def _forget_closed(self) -> None:
        self._accepted = {number: item for number, item in self._accepted.items() if item.fileno() == number}

    def _shut_down_idle(self) -> None:
        known = {connection.descriptor: connection for connection in [*self.connections]}
        idle = [number for number in self._accepted if number not in known or not known[number].is_busy]
        idle.sort(key=lambda number: number in known and known[number].was_admitted)
        for number in idle[: max(1, self.max_connections // _CLOSED_SHARE)]:
            try:
                self._accepted[number].shutdown(socket.SHUT_RDWR)
            except OSError:  # closed by the client
                continue
