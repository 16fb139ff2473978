"""Ports that are held for a process which is yet to listen there."""

import socket
from contextlib import ExitStack, closing

import pytest

from mindbatch.io.errors import MindBatchError
from mindbatch.launch.free_ports import HeldPorts


def test_a_held_port_is_given_to_nobody_else() -> None:
    with ExitStack() as opened:
        held = opened.enter_context(closing(HeldPorts("127.0.0.1", 5)))
        others = [opened.enter_context(closing(HeldPorts("127.0.0.1", 200))) for _ in range(2)]
        drawn = [number for each in (held, *others) for number in each.numbers]
        assert len(set(drawn)) == len(drawn) == 405


def test_whoever_is_told_its_number_may_listen_there() -> None:
    with closing(HeldPorts("127.0.0.1", 1)) as held, socket.create_server(("127.0.0.1", held.numbers[0])):
        socket.create_connection(("127.0.0.1", held.numbers[0])).close()
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", held.numbers[0]))


def test_an_address_of_another_machine() -> None:
    with pytest.raises(MindBatchError, match="^192.0.2.1: no address of this machine"):
        HeldPorts("192.0.2.1", 1)
