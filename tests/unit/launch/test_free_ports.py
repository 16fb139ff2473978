"""Ports that are held for a process which is yet to listen there."""

import socket
from contextlib import ExitStack, closing

import pytest

from mindbatch.io.errors import MindBatchError
from mindbatch.launch.free_ports import HeldPort


def test_a_held_port_is_given_to_nobody_else() -> None:
    with ExitStack() as opened:
        drawn = [opened.enter_context(closing(HeldPort("127.0.0.1"))).number for _ in range(405)]
        assert len(set(drawn)) == len(drawn) == 405


def test_whoever_is_told_its_number_may_listen_there() -> None:
    with closing(HeldPort("127.0.0.1")) as held, socket.create_server(("127.0.0.1", held.number)):
        socket.create_connection(("127.0.0.1", held.number)).close()
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", held.number))


def test_an_address_of_another_machine() -> None:
    with pytest.raises(MindBatchError, match="^192.0.2.1: no address of this machine"):
        HeldPort("192.0.2.1")
