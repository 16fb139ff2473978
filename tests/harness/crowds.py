"""Hundreds of connections at once: idle ones, half uploads and streams; what they get, and what is left."""

from __future__ import annotations

import json
import selectors
import socket
import time
from dataclasses import dataclass, field
from random import Random

import h11

from harness.http_answers import AnswerReader, connect, faults
from harness.http_mutations import request_bytes
from harness.watched_server import Findings, WatchedServer

_KINDS = ("idle", "half", "stream")
_HALF = (
    b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    b"Content-Length: 300000\r\n\r\n--x\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\n"
) + b"x" * 70_000
_STREAM = {"prompt": "one, two,", "max_tokens": 40, "temperature": 0, "stream": True, "ignore_eos": True}
_STATUSES = {"idle": {None}, "half": {408, 429}, "stream": {200, 429}}


@dataclass
class _Client:
    kind: str
    connection: socket.socket
    reader: AnswerReader = field(default_factory=AnswerReader)

    @property
    def status(self) -> int | None:
        return self.reader.answers[0].status if self.reader.answers else None

    @property
    def text(self) -> str:
        """What its stream says."""
        events = self.reader.answers[0].body.decode().split("\n\n")
        chunks = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)


def crowd(
    watched: WatchedServer, findings: Findings, random: Random, count: int, most: int, limit: float
) -> int:
    """Connects so often at once and waits until each has its answer or is ended; returns the streams."""
    kinds = [_KINDS[number % 3] for number in range(count)]
    random.shuffle(kinds)
    clients = [_Client(kind, connect(watched.port)) for kind in kinds]
    stream = request_bytes("POST", "/v1/completions", json.dumps(_STREAM).encode())
    for client in clients:
        if client.kind != "idle":
            client.connection.sendall(_HALF if client.kind == "half" else stream)
    _read_all(clients, findings, limit)
    streams = [client for client in clients if client.kind == "stream" and client.status == 200]
    if len({client.text for client in streams}) > 1:
        findings.add("streams of one prompt differ", str({client.text for client in streams}))
    for client in clients:
        _judge(client, findings)
    refused = sum(client.status == 429 for client in clients)
    if kinds.count("half") > most and not refused:  # they keep their places
        findings.add("a crowd is not refused", f"{count} connections, {most} requests at a time")
    if not streams:
        findings.add("a crowd gets no stream at all")
    return len(streams)


def full_house(watched: WatchedServer, findings: Findings, count: int) -> None:
    """So many requests at a time are answered: none that has ended keeps a place."""
    stream = request_bytes("POST", "/v1/completions", json.dumps(_STREAM).encode())
    clients = [_Client("stream", connect(watched.port)) for _ in range(count)]
    for client in clients:
        client.connection.sendall(stream)
    _read_all(clients, findings, 30)
    if refused := sum(client.status != 200 for client in clients):
        findings.add("places are lost", f"{refused} of {count} streams are refused")


def _read_all(clients: list[_Client], findings: Findings, limit: float) -> None:
    end = time.monotonic() + limit
    with selectors.DefaultSelector() as selector:
        for client in clients:
            client.connection.setblocking(False)
            selector.register(client.connection, selectors.EVENT_READ, client)
        while selector.get_map() and time.monotonic() < end:
            for key, _ in selector.select(0.2):
                if not _goes_on(key.data, findings):
                    selector.unregister(key.fileobj)
        for key in [*selector.get_map().values()]:
            findings.add(f"a connection of a crowd is not ended ({key.data.kind})", f"after {limit:.0f} s")
    for client in clients:
        client.connection.close()


def _goes_on(client: _Client, findings: Findings) -> bool:
    try:
        data = client.connection.recv(1 << 16)
        client.reader.feed(data)
    except h11.RemoteProtocolError as error:
        findings.add("an answer is no HTTP", str(error))
        return False
    except OSError:
        return False
    return bool(data) and not (client.reader.answers and client.reader.answers[-1].is_whole)


def _judge(client: _Client, findings: Findings) -> None:
    if client.status not in _STATUSES[client.kind]:
        findings.add(f"a crowd's {client.kind} gets {client.status}", str(client.reader.answers)[:500])
    for answer in client.reader.answers:
        for fault in faults(answer, "POST", []):
            findings.add(fault, f"in a crowd, {client.kind}: {answer}"[:500])
        if answer.status == 429 and "retry-after" not in answer.headers:
            findings.add("429 without Retry-After", str(answer.headers))
        if not answer.is_whole:
            findings.add(f"an answer of a crowd breaks off ({client.kind})", str(answer)[:300])
