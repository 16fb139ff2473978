"""Connections: those that only stay make way for others, and leave descriptors for work."""

import errno
import resource
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mindbatch.server.connections import Listener, allow_descriptors


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.max_connections = 16
        listening.settimeout(10)
        yield listening


def clients(listener: Listener, count: int) -> list[socket.socket]:
    return [socket.create_connection(listener.getsockname(), timeout=10) for _ in range(count)]


def is_ended(client: socket.socket) -> bool:
    client.settimeout(0.02)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False


def connection(accepted: socket.socket, *, is_busy: bool = False, was_admitted: bool = False) -> Any:
    return SimpleNamespace(descriptor=accepted.fileno(), is_busy=is_busy, was_admitted=was_admitted)


def test_there_are_never_more_than_may_be_and_the_oldest_strangers_go_first(listener: Listener) -> None:
    waiting = clients(listener, 17)
    accepted = [listener.accept()[0] for _ in range(16)]
    kinds: list[dict[str, bool]] = [{"was_admitted": True}, {"is_busy": True}, {}, *[{}] * 13]
    known = [connection(one, **kind) for one, kind in zip(accepted, kinds, strict=True)]
    listener.connections = known[:3]  # TLS has not been agreed on with the others
    with pytest.raises(OSError, match="Too many open files") as caught:
        listener.accept()
    assert caught.value.errno == errno.EMFILE
    assert [is_ended(client) for client in waiting[:5]] == [False, False, True, True, False]
    for one in accepted[2:4]:  # as the loop does with what has ended
        one.close()
    assert listener.accept()[0].fileno() >= 0
    for one in [*accepted, *waiting]:
        one.close()


def test_where_all_are_busy_none_ends(listener: Listener) -> None:
    waiting = clients(listener, 17)
    accepted = [listener.accept()[0] for _ in range(16)]
    listener.connections = [connection(one, is_busy=True) for one in accepted]
    with pytest.raises(OSError, match="Too many open files"):
        listener.accept()
    assert not any(map(is_ended, waiting[:16]))
    for one in [*accepted, *waiting]:
        one.close()


@pytest.mark.parametrize(
    ("limits", "most", "wanted"),
    [
        ((256, 256), 128, None),
        ((1024, 4096), 2048, (4096, 4096)),
        ((1024, 1 << 20), 1 << 15, (1 << 16, 1 << 20)),
        ((1 << 20, 1 << 20), 1 << 19, None),
    ],
)
def test_half_of_the_descriptors_are_for_work(
    limits: tuple[int, int], most: int, wanted: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: made.append(pair))
    assert allow_descriptors() == most
    assert made == ([] if wanted is None else [wanted])
