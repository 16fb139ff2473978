"""Clients that are slow, that leave, or that never read: what a server does with their connections."""

from __future__ import annotations

import json
import socket
import threading
import time
from random import Random
from typing import Any

from harness.http_answers import AnswerReader, connect, faults
from harness.http_mutations import request_bytes
from harness.watched_server import Findings, WatchedServer

SECONDS_BETWEEN_BYTES = 0.5
_LONG: dict[str, Any] = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True}
_CHATTED = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1900, "ignore_eos": True}
LEFT: dict[str, tuple[str, dict[str, Any]]] = {
    "a completion": ("/v1/completions", _LONG),
    "a stream": ("/v1/completions", {**_LONG, "stream": True}),
    "a stream of several": ("/v1/completions", {**_LONG, "stream": True, "prompt": ["a"] * 20, "n": 2}),
    "many prompts": ("/v1/completions", {**_LONG, "prompt": ["a"] * 1000}),
    "beams": ("/v1/completions", {**_LONG, "n": 4, "use_beam_search": True}),
    "a stream of beams": ("/v1/completions", {**_LONG, "n": 4, "use_beam_search": True, "stream": True}),
    "a chat": ("/v1/chat/completions", _CHATTED),
    "a streamed chat": ("/v1/chat/completions", {**_CHATTED, "stream": True}),
    "a response": ("/v1/responses", {"input": "Hi", "max_output_tokens": 1900}),
    "a streamed response": ("/v1/responses", {"input": "Hi", "max_output_tokens": 1900, "stream": True}),
    "a long regex": ("/v1/completions", {**_LONG, "guided_regex": "(a{1,9}b{1,9}){200}"}),
}

_HEAD = "{} {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {}\r\n{}\r\n\r\n"
_LENGTH, _CHUNKED = "Content-Length: 5000", "Transfer-Encoding: chunked"


def _head(method: str, path: str, framing: str, kind: str = "application/json") -> bytes:
    return _HEAD.format(method, path, kind, framing).encode()


_FORM = "multipart/form-data; boundary=x"
_PART = b"--x\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\n"
DRIPS: dict[str, tuple[bytes, bytes]] = {
    "a head": (b"", b"G"),
    "the header of a head": (b"GET / HTTP/1.1\r\nx: ", b"y"),
    "a second head": (request_bytes("GET", "/health"), b"G"),
    "a body": (_head("POST", "/v1/completions", _LENGTH), b"{"),
    "a chunked body": (_head("POST", "/v1/completions", _CHUNKED), b"1\r\n{\r\n"),
    "the size of a chunk": (_head("POST", "/v1/completions", _CHUNKED), b"0"),
    "an upload": (_head("POST", "/v1/files", _LENGTH, _FORM) + _PART, b"x"),
    "the body of a GET": (_head("GET", "/health", _CHUNKED), b"1\r\nx\r\n"),
    "a body for no route": (_head("POST", "/v1/nothing", _LENGTH), b"x"),
    "a body of a wrong kind": (_head("POST", "/v1/completions", _CHUNKED, "text/plain"), b"1\r\nx\r\n"),
    "a body after a pause": (_head("POST", "/v1/completions", _LENGTH) + b"{", b""),
    "nothing": (b"", b""),
    "nothing after an answer": (request_bytes("GET", "/health"), b""),
}


def drip(watched: WatchedServer, findings: Findings, read_seconds: int) -> list[threading.Thread]:
    """Begins to send what never ends, a bit at a time; each must be ended by the server."""
    limit = 2 * read_seconds + 2.0  # a pause after a pause is still one client that sends nothing whole
    threads = [
        threading.Thread(target=_drip, args=(watched.port, findings, what, first, rest, limit))
        for what, (first, rest) in DRIPS.items()
    ]
    for thread in threads:
        thread.start()
    return threads


def _drip(port: int, findings: Findings, what: str, first: bytes, rest: bytes, limit: float) -> None:
    reader, begun = AnswerReader(), time.monotonic()
    with connect(port) as connection:
        connection.sendall(first)
        connection.settimeout(SECONDS_BETWEEN_BYTES)
        try:
            while time.monotonic() - begun < limit:
                try:
                    if not (data := connection.recv(1 << 16)):
                        return
                    reader.feed(data)
                except TimeoutError:
                    pass
                connection.sendall(rest)
        except OSError:
            return
        finally:
            for answer in reader.answers:
                for fault in faults(answer, "GET", []):
                    findings.add(fault, f"dripping {what}")
    findings.add(f"dripping {what} is not ended", f"after {limit} s; answered {reader.answers}")


def leave(watched: WatchedServer, findings: Findings, random: Random, times: int) -> int:
    """Asks for what takes long and leaves, before an answer or amid it; the engine must come to rest."""
    for what, (path, body) in LEFT.items():
        wire = request_bytes("POST", path, json.dumps(body).encode())
        for _ in range(times):
            connections = [connect(watched.port) for _ in range(random.choice((1, 1, 5)))]
            for connection in connections:
                connection.sendall(wire)
            time.sleep(random.choice((0, 0.01, 0.05, 0.3)))
            for connection in connections:
                if random.random() < 0.3:  # a reset instead of an end
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.close()
            watched.check_rest(f"clients of {what} left")
    return times * len(LEFT)


def never_read(watched: WatchedServer, findings: Findings, count: int, most_kib: int) -> None:
    """Asks for long streams and reads none of them; the server must hold little, and go on."""
    body = json.dumps({**_LONG, "max_tokens": 500, "n": 2, "logprobs": 1, "stream": True}).encode()
    before = watched.resources()["KiB"]
    connections = [connect(watched.port, 2048) for _ in range(count)]
    for connection in connections:
        connection.sendall(request_bytes("POST", "/v1/completions", body))
    begun, load = time.monotonic(), {"": 1.0}
    while any(load.values()) and time.monotonic() - begun < 60:
        time.sleep(0.1)
        load = watched.gauges()
    grown = watched.resources()["KiB"] - before
    if grown > most_kib:
        findings.add("unread streams take memory", f"{grown} KiB for {count}")
    watched.check()
    for connection in connections:
        connection.close()
    watched.check_rest("clients that never read left")
