"""Connections of a job: messages as they were sent, and nothing for whoever does not know the key."""

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from queue import SimpleQueue

import numpy as np
import pytest

from mindbatch.parallel import connection
from mindbatch.parallel.connection import (
    JobListener,
    MessageConnection,
    MessageError,
    connect,
    decoded,
    encoded,
)

KEY = os.urandom(32)


class Meeting:
    """A listener, and the connections that it has taken."""

    def __init__(self) -> None:
        self.taken: SimpleQueue[MessageConnection] = SimpleQueue()
        self.listener = JobListener("127.0.0.1", KEY, self.taken.put)


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    made = Meeting()
    yield made
    made.listener.close()


def test_a_message_arrives_as_it_was_sent(meeting: Meeting) -> None:
    ours = connect(meeting.listener.address, KEY)
    theirs = meeting.taken.get(timeout=10)
    arrays = [np.arange(6, dtype=np.int32).reshape(2, 3), np.zeros((0, 4), np.float32), np.array([True])]
    fields = {"infinite": -np.inf, "long": 10**30, "text": "a\ud800 é\n", "none": None, "third": 1 / 3}
    ours.send("kind", arrays, **fields)
    kind, found, copies = theirs.receive()
    assert (kind, found) == ("kind", fields)
    for array, copy in zip(arrays, copies, strict=True):
        assert copy.dtype == array.dtype
        np.testing.assert_array_equal(copy, array)


def test_the_end_of_a_connection_is_noticed(meeting: Meeting) -> None:
    ours = connect(meeting.listener.address, KEY)
    theirs = meeting.taken.get(timeout=10)
    theirs.close()
    with pytest.raises((EOFError, OSError)):
        ours.receive()


def test_another_key_gets_nothing_and_breaks_nothing(meeting: Meeting) -> None:
    with pytest.raises(ConnectionError, match="not of this job"):
        connect(meeting.listener.address, os.urandom(32))
    ours = connect(meeting.listener.address, KEY)
    ours.send("hello")
    assert meeting.taken.get(timeout=10).receive().kind == "hello"
    assert meeting.taken.empty()


@pytest.mark.parametrize(
    "content", [b"", b"GET / HTTP/1.1\r\n\r\n", struct.pack("!i", 1 << 30), b"\xff" * 99]
)
def test_a_foreign_program_gets_nothing_and_breaks_nothing(meeting: Meeting, content: bytes) -> None:
    with socket.create_connection(meeting.listener.address) as foreign:
        received = b""
        with suppress(OSError):  # it may be closed before all is sent
            foreign.sendall(content)
            foreign.shutdown(socket.SHUT_WR)
            while part := foreign.recv(4096):
                received += part
    assert KEY not in received
    assert connect(meeting.listener.address, KEY) is not None
    assert meeting.taken.get(timeout=10) is not None
    assert meeting.taken.empty()


@pytest.mark.slow
def test_who_says_nothing_keeps_nobody_waiting(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 1)
    with socket.create_connection(meeting.listener.address) as silent:
        connect(meeting.listener.address, KEY)
        meeting.taken.get(timeout=10)
        silent.settimeout(10)
        while silent.recv(4096):
            pass  # the challenge; then it is closed


@pytest.mark.slow
def test_who_holds_connections_keeps_nobody_out(meeting: Meeting) -> None:
    with ExitStack() as held:
        streams = [held.enter_context(socket.create_connection(meeting.listener.address)) for _ in range(300)]
        began = time.monotonic()
        for _ in range(3):
            connect(meeting.listener.address, KEY)
            meeting.taken.get(timeout=10)
        assert time.monotonic() - began < connection.HANDSHAKE_SECONDS
        streams[0].settimeout(10)
        while streams[0].recv(4096):
            pass  # the challenge; then the oldest is closed


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        struct.pack("<I", 100) + b"{}",
        struct.pack("<I", 2) + b"[]",
        struct.pack("<I", 2) + b"{}",
        encoded("kind", {})[:-1],
        encoded("kind", {}, [np.arange(3)])[:-1],
        encoded("kind", {}, [np.arange(3)]) + b"x",
        encoded("kind", {}, [np.array([b"text"])]),
        encoded("kind", {}).replace(b'"fields":{}', b'"fields":[]'),
        encoded("kind", {}, [np.arange(3)]).replace(b"[3]", b"[-]"),
        encoded("kind", {}, [np.arange(3)]).replace(b"int64", b"objec"),
    ],
)
def test_what_is_no_message_is_refused(content: bytes) -> None:
    with pytest.raises(MessageError, match="not a message"):
        decoded(content)


def test_a_peer_that_cannot_be_accepted_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the process has no file descriptor left for a moment."""
    failures = iter(range(2))
    accept = socket.socket.accept

    def failing(stream: socket.socket) -> tuple[socket.socket, object]:
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(stream)

    monkeypatch.setattr(socket.socket, "accept", failing)
    made = Meeting()
    connect(made.listener.address, KEY)
    assert made.taken.get(timeout=10) is not None
    made.listener.close()
