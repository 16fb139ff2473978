"""Connections of the server: fewer than descriptors, of which its work needs some; idle ones give way."""

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
"""Key of a scope whose request had a right to ask."""
_MOST_DESCRIPTORS = 1 << 16
MOST_ACCEPTED_AT_ONCE = 64
_SHARE_THAT_GIVES_WAY = 8
_READ_BYTES, _CHUNKED_READ_BYTES = 1 << 16, 1 << 12
"""Bytes that are read from a connection before others have their turn: chunks may have a byte each."""


def allow_descriptors() -> int:
    """Raises this process's limit of open files as far as it may; returns the connections that it leaves."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [limit for limit in (hard, _MOST_DESCRIPTORS) if limit != resource.RLIM_INFINITY]
    if soft == resource.RLIM_INFINITY:
        soft = _MOST_DESCRIPTORS
    elif (most := min(limits)) > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return max(1, soft // 2)


class Connection(H11Protocol):
    """One connection. was_admitted: a request of it had a right to ask."""

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
        """True while an answer is being made or sent."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def descriptor(self) -> int:
        return int(self.transport.get_extra_info("socket").fileno())


class Listener(socket.socket):
    """A listening socket that has so many connections at most.

    When there are more, those are shut down that are not busy, first those that were never admitted, of these
    the oldest: connections before their first request, and before TLS is agreed on, are such. Where all are
    busy it accepts none for a second.
    """

    most = _MOST_DESCRIPTORS
    connections: Iterable[Any] = ()
    """Of the server's protocol."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._accepted: dict[int, socket.socket] = {}  # by descriptor, in the order of their coming

    def listen(self, backlog: int = MOST_ACCEPTED_AT_ONCE) -> None:
        super().listen(socket.SOMAXCONN)  # the loop accepts `backlog` at once; others wait in the system

    def accept(self) -> tuple[socket.socket, Any]:
        """Raises OSError as where there is no descriptor, after which the loop waits for a second."""
        if len(self._accepted) >= self.most:
            self._forget_closed()
        if len(self._accepted) >= self.most:
            self._shut_down_idle()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        accepted, address = super().accept()
        self._accepted.pop(accepted.fileno(), None)
        self._accepted[accepted.fileno()] = accepted
        return accepted, address

    def _forget_closed(self) -> None:
        self._accepted = {number: one for number, one in self._accepted.items() if one.fileno() == number}

    def _shut_down_idle(self) -> None:
        known = {connection.descriptor: connection for connection in [*self.connections]}
        idle = [number for number in self._accepted if number not in known or not known[number].is_busy]
        idle.sort(key=lambda number: number in known and known[number].was_admitted)
        for number in idle[: max(1, self.most // _SHARE_THAT_GIVES_WAY)]:
            try:
                self._accepted[number].shutdown(socket.SHUT_RDWR)
            except OSError:  # gone already
                continue
