"""Rendezvous of one replica's ranks: the leader listens, the front passes its address on."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from queue import SimpleQueue

from mindbatch.replicas.connection import Address, JobListener, MessageConnection, MessageError, connect

FOLLOWER = "follower"
"""The first message on such a connection: the local rank that follows."""


def accept_followers(
    host: str, key: bytes, ranks: Collection[int], announce: Callable[[Address], object]
) -> dict[int, MessageConnection]:
    """Listens until every one of the local ranks has connected; the connections by rank.

    announce: is told where they find this process.
    """
    arrived: SimpleQueue[tuple[int, MessageConnection]] = SimpleQueue()

    def take(connection: MessageConnection) -> None:
        with suppress(EOFError, OSError, MessageError):
            first = connection.receive()
            if first.kind == FOLLOWER and first.fields.get("rank") in ranks:
                arrived.put((first.fields["rank"], connection))
                return
        connection.close()

    listener = JobListener(host, key, take)
    try:
        announce(listener.address)
        connections: dict[int, MessageConnection] = {}
        while len(connections) < len(ranks):
            rank, connection = arrived.get()
            connections[rank] = connection
        return connections
    finally:
        listener.close()


def connect_to_leader(address: Address, key: bytes, rank: int) -> MessageConnection:
    """The connection of a local rank to the leader of its replica. OSError if nobody of the job listens."""
    connection = connect(address, key)
    connection.send(FOLLOWER, rank=rank)
    return connection


def own_address(towards: Address) -> str:
    """The address of this host that others reach it by, as far as one goes that leads to another process."""
    family = socket.AF_INET6 if ":" in towards[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect(towards)
        return str(probe.getsockname()[0])
