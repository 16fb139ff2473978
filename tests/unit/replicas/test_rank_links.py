"""The front's connections to ranks: nobody waits for a rank that takes nothing."""

import os
import threading
from collections.abc import Iterator

import pytest

from mindbatch.parallel.connection import MessageConnection, connect
from mindbatch.replicas.messages import HELLO
from mindbatch.replicas.rank_links import RankLinks

KEY = os.urandom(32)
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


def test_messages_arrive_in_order(links: RankLinks) -> None:
    rank = joined(links, 1)
    for number in range(20):
        links.send(1, "add", text=LARGE[: number * 1000], number=number)
    found = [rank.receive() for _ in range(20)]
    assert [message.fields["number"] for message in found] == [*range(20)]
    assert [len(message.fields["text"]) for message in found] == [1000 * number for number in range(20)]


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


def test_to_a_rank_that_has_not_come_nothing_is_sent(links: RankLinks) -> None:
    links.send(1, "add", number=1)
    rank = joined(links, 1)
    links.send(1, "add", number=2)
    assert rank.receive().fields["number"] == 2


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
