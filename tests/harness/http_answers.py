"""Answers of an HTTP server, read from a socket, parsed strictly, and judged as OpenAI's API has them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import h11

NO_HTTP = (400, "text/plain", b"Invalid HTTP request received.")
"""The answer to what is no HTTP, which comes before any route."""
ERROR_KEYS = {"message", "type", "param", "code"}
_JSON, _EVENTS = "application/json", "text/event-stream"


@dataclass
class Answer:
    """One answer. is_whole: its end has come."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    is_whole: bool = False


@dataclass
class Exchange:
    """What a server has answered to the bytes of one connection.

    ended: "closed", "reset" or "open", where it was not ended by the server.
    error: why the bytes are no HTTP; None where they are.
    """

    answers: list[Answer] = field(default_factory=list)
    ended: str = "open"
    error: str | None = None
    seconds: float = 0.0


def connect(port: int, receive_buffer: int | None = None) -> socket.socket:
    """A connection to the server."""
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", port))
    return connection


def exchange(
    connection: socket.socket, wire: bytes, method: str, count: int | None, patience: float
) -> Exchange:
    """Sends bytes and reads answers: `count` of them, or, for None, until nothing comes for `patience`."""
    result, begun = Exchange(), time.monotonic()
    reader = AnswerReader(method)
    try:
        connection.sendall(wire)
    except OSError:
        result.ended = "reset"  # what was answered before may still be read
    connection.settimeout(patience)
    try:
        while count is None or sum(answer.is_whole for answer in reader.answers) < count:
            data = connection.recv(1 << 16)
            reader.feed(data)
            if not data:
                result.ended = "closed"
                break
    except TimeoutError:
        pass
    except h11.RemoteProtocolError as error:
        result.error = str(error)
    except OSError:
        result.ended = "reset"
    result.answers, result.seconds = reader.answers, time.monotonic() - begun
    return result


class AnswerReader:
    """Reads the answers that come over one connection, one after another."""

    def __init__(self, method: str = "GET") -> None:
        self.answers: list[Answer] = []
        self._method = "HEAD" if method == "HEAD" else "GET"
        self._connection: h11.Connection | None = None

    def feed(self, data: bytes) -> None:
        """Takes bytes, empty ones at the end; raises h11.RemoteProtocolError where they are no answer."""
        while data or self._connection is not None:
            if self._connection is None:
                self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
                asked = h11.Request(method=self._method, target="/", headers=[("host", "a")])
                self._connection.send(asked)
                self._connection.send(h11.EndOfMessage())
            self._connection.receive_data(data)
            if not self._events(self._connection):
                return
            data, _ = self._connection.trailing_data
            self._connection = None

    def _events(self, connection: h11.Connection) -> bool:
        """Takes what is there; True at an answer's end."""
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
                self.answers.append(Answer(event.status_code, headers))
            elif isinstance(event, h11.Data):
                self.answers[-1].body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self.answers[-1].is_whole = True
                return True
            elif event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                return False


def faults(answer: Answer, method: str, secrets: list[str]) -> Iterator[str]:
    """Why an answer is none of OpenAI's API. secrets: texts that none may hold."""
    body, kind = answer.body, answer.headers.get("content-type", "").partition(";")[0]
    if any(name.startswith("access-control-") for name in answer.headers):
        yield "CORS was not asked for"
    if any(secret.encode() in body for secret in secrets):
        yield f"{answer.status} tells a path or a key of the server"
    if answer.status >= 500 and answer.status not in (503, 507):
        yield f"status {answer.status}"
    if not answer.is_whole or method == "HEAD" or answer.status in (204, 304, 307):
        return
    if answer.status >= 400:
        yield from _error_faults(answer.status, kind, body)
    elif kind == _JSON:
        try:
            json.loads(body.decode(), parse_constant=lambda name: 1 / 0)
        except (ValueError, ZeroDivisionError):
            yield "an answer is no JSON"
    elif kind == _EVENTS:
        yield from _stream_faults(body)


def _error_faults(status: int, kind: str, body: bytes) -> Iterator[str]:
    if (status, kind, body) == NO_HTTP:
        return
    try:
        content = json.loads(body.decode())
        error = content["error"]
        texts = [error[name] for name in ("message", "type")]
    except (ValueError, KeyError, TypeError):
        yield f"{status} has no error of OpenAI's form ({kind or 'no content-type'}: {body[:60]!r})"
        return
    if kind != _JSON or content.keys() != {"error"} or error.keys() != ERROR_KEYS:
        yield f"{status} has an error of another form"
    if not all(isinstance(text, str) and text for text in texts):
        yield f"{status} has an error without a text"
    elif any(not character.isprintable() for text in texts for character in text):
        yield f"{status} has control characters in its message"
    if len(body) > 20_000:
        yield f"{status} has a body of {len(body)} bytes"


def _stream_faults(body: bytes) -> Iterator[str]:
    *events, end = body.split(b"\n\n")
    datas = [event.rpartition(b"data: ")[2] for event in events]
    if end or not datas:
        yield "a stream is no row of events"
        return
    is_done = datas[-1] == b"[DONE]"
    try:
        contents = [json.loads(data.decode()) for data in datas[: -1 if is_done else None]]
    except ValueError:
        yield "an event of a stream is no JSON"
        return
    if not is_done and "error" not in contents[-1] and contents[-1].get("type") not in _LAST_EVENTS:
        yield "a stream has no end"


_LAST_EVENTS = ("response.completed", "response.incomplete")
