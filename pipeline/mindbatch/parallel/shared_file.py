"""A file in memory that ranks of one host share: the first rank makes it and sends it to the others."""

import hashlib
import os
import socket
import struct
import threading
import time
from contextlib import suppress

from mindbatch.io.errors import MindBatchError
from mindbatch.parallel.connection import AuthenticatingListener, is_authenticated, set_timeout
from mindbatch.parallel.topology import TensorSlice

SECONDS = 1800.0
"""Time limit for all ranks. The process that watches them notices much earlier that one hangs."""
_BETWEEN_TRIES = 0.02
_RANK = struct.Struct("<I")


def shared_file(secret: bytes, name: str, shard: TensorSlice, nbytes: int) -> int:
    """Opens the same file, filled with zeros, in all ranks of a slice; it is in no folder.

    secret: a secret that only the ranks of a replica know, and prove before they get the file or are counted.
    name: the name of the slice among those of the replica.

    Raises:
        MindBatchError: other ranks have not joined in time.
    """
    address = address_of(secret, name)
    return _serve(address, secret, shard, nbytes) if shard.rank == 0 else _fetch(address, secret, shard)


def address_of(secret: bytes, name: str) -> str:
    """Derives the first rank's listening address; Linux's abstract names vanish with their sockets."""
    return f"\0mindbatch-{hashlib.sha256(secret + name.encode()).hexdigest()[:32]}"


def _serve(address: str, secret: bytes, shard: TensorSlice, nbytes: int) -> int:
    file = os.memfd_create("mindbatch", os.MFD_CLOEXEC)
    os.ftruncate(file, nbytes)
    served, changed = {shard.rank}, threading.Condition()

    def send(stream: socket.socket) -> None:
        with stream, suppress(OSError, struct.error):
            socket.send_fds(stream, [b"\0"], [file])
            [rank] = _RANK.unpack(stream.recv(_RANK.size))  # it has the file
            with changed:
                served.add(rank)
                changed.notify()

    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(address)
    listening.listen()
    listener = AuthenticatingListener(listening, secret, send)
    try:
        with changed:
            if not changed.wait_for(lambda: len(served) == shard.size, SECONDS):
                raise _missing_ranks(shard)
    finally:
        listener.close()
    return file


def _fetch(address: str, secret: bytes, shard: TensorSlice) -> int:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        # The first rank does not listen yet, many ranks wait to be accepted, or a loaded machine was slow.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream, suppress(OSError):
            set_timeout(stream, socket.SO_SNDTIMEO, 1)
            stream.connect(address)
            if is_authenticated(stream, secret, listens=False) and (
                files := socket.recv_fds(stream, 1, 1)[1]
            ):
                stream.sendall(_RANK.pack(shard.rank))
                return files[0]
        time.sleep(_BETWEEN_TRIES)
    raise _missing_ranks(shard)


def _missing_ranks(shard: TensorSlice) -> MindBatchError:
    return MindBatchError(
        f"tensor rank {shard.rank} of {shard.size}: other ranks have not joined within {SECONDS:.0f} seconds"
    )
