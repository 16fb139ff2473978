"""HTTP/1.1 connections that end when nothing comes of them, whatever their clients do."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import h11
import orjson
from uvicorn.protocols.http.h11_impl import H11Protocol

from mindbatch.server.api_errors import bad_request

_LINGER_SECONDS = 2.0
_LINGER_BYTES = 1 << 20
"""Time, and bytes, for the rest of a request that was answered before it was whole."""


class Connection(H11Protocol):
    """Bounds the wait for each request's head to `read_seconds`; the guard bounds that for its body."""

    read_seconds: float
    _waiting: asyncio.TimerHandle
    _num_left = _LINGER_BYTES

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waiting = self.loop.call_later(self.read_seconds, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before, was_spent = self.cycle, self._is_spent
        if was_spent:
            self._num_left -= len(data)
            if self._num_left < 0:
                return
        try:
            super().data_received(data)
        except h11.LocalProtocolError:
            self.transport.abort()
        if self.cycle is not before:
            self._waiting.cancel()
        elif was_spent and not self._is_spent:
            self._wait(self.read_seconds)

    def on_response_complete(self) -> None:
        before = self.cycle
        super().on_response_complete()
        self._unset_keepalive_if_required()  # which each byte would put off
        if self.cycle is before and not self.transport.is_closing():
            self._num_left = _LINGER_BYTES
            self._wait(_LINGER_SECONDS if self._is_spent else self.read_seconds)

    def _wait(self, seconds: float) -> None:
        self._waiting.cancel()
        self._waiting = self.loop.call_later(seconds, self.transport.close)

    @property
    def _is_spent(self) -> bool:
        """True where a request was answered before it was whole."""
        is_answered = self.cycle is not None and self.cycle.response_complete
        return is_answered and self.conn.their_state is h11.SEND_BODY

    def send_400_response(self, msg: str) -> None:
        """Answers to what is no HTTP, as to every other mistake; ends what has begun to read it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = orjson.dumps(bad_request(msg).body)
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        head = h11.Response(status_code=400, headers=[*headers, ("connection", "close")])
        with contextlib.suppress(h11.LocalProtocolError):  # where an answer has begun, or may have no body
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
