"""The memory that ranks of a host meet in is handed to those who prove their secret, and to nobody else."""

import array
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, answer_challenge

import pytest

from mindbatch.io.errors import MindBatchError
from mindbatch.parallel import connection
from mindbatch.parallel import shared_file as shared_files
from mindbatch.parallel.shared_file import shared_file
from mindbatch.parallel.topology import TensorSlice

LONGEST = 20.0
"""Less than a handshake may take: nobody has waited for one."""

Files = list[Future[int]]
_LISTENS = "00010000"
"""The flags of a socket that listens, which it does a moment after it has its name."""


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    monkeypatch.setattr(shared_files, "SECONDS", LONGEST)
    with ThreadPoolExecutor(3) as made:
        yield made


def taking_part(threads: ThreadPoolExecutor, *ranks: int, size: int = 2, secret: bytes = b"") -> Files:
    """The files of the ranks, which are about to meet."""
    secret = secret or secrets.token_bytes(32)
    return [threads.submit(shared_file, secret, "0", TensorSlice(rank, size), 64) for rank in ranks]


def listening(secret: bytes) -> str:
    """The address at which the first rank listens; anybody on this machine finds it in /proc/net/unix."""
    address = shared_files.address_of(secret, "0")
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        with open("/proc/net/unix") as table:
            sockets = [line.split() for line in table]
        if any(fields[3] == _LISTENS and fields[-1] == f"@{address[1:]}" for fields in sockets):
            return address
    raise AssertionError("nobody listens")


def intruder(address: str) -> socket.socket:
    """Somebody's connection, once there is room for it; it says nothing."""
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(LONGEST)
    with suppress(BlockingIOError):  # too many wait to be accepted
        stream.connect(address)
    return stream


def are_shared(files: Files) -> bool:
    first, *others = [each.result(LONGEST) for each in files]
    os.pwrite(first, b"abc", 5)
    found = [os.pread(each, 4, 4) for each in others]
    for each in (first, *others):
        os.close(each)
    return found == [b"\0abc"] * len(others)


def test_all_ranks_have_the_same_memory(threads: ThreadPoolExecutor) -> None:
    assert are_shared(taking_part(threads, 0, 1, 2, size=3))


@pytest.mark.parametrize("number", [1, 300])
def test_who_connects_and_says_nothing_is_no_rank_and_keeps_nobody_out(
    threads: ThreadPoolExecutor, number: int
) -> None:
    secret = secrets.token_bytes(32)
    files = taking_part(threads, 0, secret=secret)
    address = listening(secret)
    with ExitStack() as held:
        for _ in range(number):
            held.enter_context(intruder(address))
        assert are_shared([*files, *taking_part(threads, 1, secret=secret)])


def test_who_has_another_key_gets_nothing(threads: ThreadPoolExecutor) -> None:
    secret = secrets.token_bytes(32)
    files = taking_part(threads, 0, secret=secret)
    with intruder(listening(secret)) as stream:
        with suppress(Exception), Connection(os.dup(stream.fileno())) as connection:
            answer_challenge(connection, secrets.token_bytes(32))
        received, ancillary, *_ = stream.recvmsg(4096, socket.CMSG_LEN(array.array("i").itemsize))
    assert not ancillary
    assert secret not in received
    assert are_shared([*files, *taking_part(threads, 1, secret=secret)])


@pytest.mark.slow
def test_a_rank_takes_nothing_from_somebody_else(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_files, "SECONDS", 0.3)
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 1)
    monkeypatch.setattr(shared_files, "address_of", lambda secret, name: "\0somebody-elses")
    with socket.socket(socket.AF_UNIX) as foreign, open(os.devnull) as file:
        foreign.bind("\0somebody-elses")
        foreign.listen()
        [fetched] = taking_part(threads, 1)
        with foreign.accept()[0] as stream:
            socket.send_fds(stream, [struct.pack("!i", 4) + b"#CHA"], [file.fileno()])
            assert stream.recv(4096) == b""
        with pytest.raises(MindBatchError, match="tensor rank 1 of 2: other ranks have not joined"):
            fetched.result(LONGEST)


def test_a_rank_that_stays_alone_ends(threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, "SECONDS", 0.3)
    for each in taking_part(threads, 0) + taking_part(threads, 1):
        with pytest.raises(MindBatchError, match="other ranks have not joined within 0 seconds"):
            each.result(LONGEST)
