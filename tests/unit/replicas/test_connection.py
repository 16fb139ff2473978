"""Connections of a job: messages as they were sent, nothing without the key, nobody waits for a rank."""

import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import CompletionOutput, Request, RequestOutput, StreamEvent
from mindbatch.io.errors import CacheBudgetError, MindBatchError
from mindbatch.parallel import connection
from mindbatch.parallel.connection import (
    JobListener,
    MessageConnection,
    MessageError,
    connect,
    decoded,
    encoded,
)
from mindbatch.replicas.messages import (
    HELLO,
    failure_fields,
    failure_of,
    request_fields,
    request_of,
    result_fields,
    result_of,
)
from mindbatch.replicas.rank_links import RankLinks

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


LARGE = "0" * (4 << 20)  # more than the buffers of a connection hold


@pytest.fixture
def links() -> Iterator[RankLinks]:
    made = RankLinks("127.0.0.1", KEY, 2)
    yield made
    made.close()


def joined(links: RankLinks, rank: int, attempt: int = 0) -> MessageConnection:
    """The end of a rank that has said hello."""
    connection = connect(links.address, KEY)
    connection.send(HELLO, rank=rank, attempt=attempt)
    arrival = links.next(10)
    assert arrival is not None
    assert arrival.rank == rank
    assert arrival.message is not None
    assert arrival.message.kind == HELLO
    return connection


def test_a_rank_that_takes_nothing_holds_no_other(links: RankLinks) -> None:
    _, other = joined(links, 0), joined(links, 1)

    def send() -> None:
        for number in range(4):
            links.send(0, "add", text=LARGE, number=number)
            links.send(1, "add", number=number)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    sender.join(20)
    assert not sender.is_alive()
    assert [other.receive().fields["number"] for _ in range(4)] == [0, 1, 2, 3]
    links.renew([0], 1)  # it is given up amid a message
    again = joined(links, 0, attempt=1)
    links.send(0, "add", number=9)
    assert again.receive().fields["number"] == 9


def test_what_an_attempt_that_is_over_sends_is_not_heard(links: RankLinks) -> None:
    old = joined(links, 0)
    old.send("step", number=1)
    arrival = links.next(10)
    assert arrival is not None
    assert arrival.message is not None
    assert arrival.message.fields == {"number": 1}
    old.send("step", number=2)
    links._arrivals.put(links._arrivals.get(timeout=10))  # it has come
    links.renew([0], 1)
    new = joined(links, 0, attempt=1)  # which hears the hello first
    assert links.next(0) is None
    new.close()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 1 / 3, "seed": (1 << 64) - 1},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "early_stopping": "never"},
        {"logit_bias": {5: 1.5, 2: -3.0}, "sequence_bias": [[[1, 2], 0.5]], "bad_words_ids": [[1], [2, 3]]},
        {"stop": ["\n", "é\ud800"], "eos_token_id": [], "forced_eos_token_id": 3, "max_new_tokens": 10**30},
        {"json_schema": {"type": "object", "properties": {"b": {}, "a": {}}}, "logprobs": 0},
        {"regex": r"[a-z]+\d", "exponential_decay_length_penalty": [3, 1.5], "suppress_tokens": [1, 2]},
    ],
)
def test_a_request_is_the_same_after_its_way(given: dict[str, Any]) -> None:
    request = Request("7", (1, 2, 30_000), DecodingParams(**given), row_key="a\ud800b", adapter=None)
    other = replace(request, key="other", prompt_token_ids=(3,))
    message = decoded(encoded("add", {"requests": [*map(request_fields, [request, other])]}))
    assert [*map(request_of, message.fields["requests"])] == [request, other]


def test_a_result_is_the_same_after_its_way() -> None:
    output = CompletionOutput(
        0, "text \ud800", [1, 2], "stop", -1 / 3, [{5: -0.1, 7: -np.inf}], -np.inf, 1, 3, 2
    )
    finished = [
        RequestOutput("7", None, [], [output], [None, {3: -0.25}], num_cached_tokens=16),
        RequestOutput.failed("8", "8: has no tokens"),
    ]
    scored = StreamEvent("7", 0, "x", (5,), None, ({5: -0.1, 7: -np.inf},))
    events = [StreamEvent("7", 0, "te", (1, 2)), scored, StreamEvent("7", 0, "", (), "stop")]
    result = StepResult(events, finished)
    assert result_of(decoded(encoded("step", result_fields(result))).fields) == result


def test_an_error_of_no_own_kind_is_one_of_its_base() -> None:
    assert type(failure_of(failure_fields(CacheBudgetError("full")))) is MindBatchError
    assert failure_of(failure_fields(RuntimeError("a\nb"))).lines == ("RuntimeError('a\\nb')",)
