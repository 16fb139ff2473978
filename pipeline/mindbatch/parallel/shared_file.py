"""A file in memory that the ranks of one host share: its first rank makes it, and hands it to the others."""

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
"""In which all ranks are expected. Whoever watches them knows long before whether one hangs."""
_BETWEEN_TRIES = 0.02
_RANK = struct.Struct("<I")


def shared_file(secret: bytes, name: str, shard: TensorSlice, nbytes: int) -> int:
    """The open file, filled with zeros, that all ranks of a slice get; nothing of it is in any folder.

    secret: known to the ranks of a replica alone, which prove it to each other before they get or count
    anything. name: of the slice among those of the replica.

    Raises:
        MindBatchError: the other ranks have not come.
    """
    address = address_of(secret, name)
    return _hand_out(address, secret, shard, nbytes) if shard.rank == 0 else _fetch(address, secret, shard)


def address_of(secret: bytes, name: str) -> str:
    """Derives the first rank's listening address; Linux's abstract names vanish with their sockets."""
    return f"\0mindbatch-{hashlib.sha256(secret + name.encode()).hexdigest()[:32]}"


def _hand_out(address: str, secret: bytes, shard: TensorSlice, nbytes: int) -> int:
    file = os.memfd_create("mindbatch", os.MFD_CLOEXEC)
    os.ftruncate(file, nbytes)
    served, changed = {shard.rank}, threading.Condition()

    def serve(stream: socket.socket) -> None:
        with stream, suppress(OSError, struct.error):
            socket.send_fds(stream, [b"\0"], [file])
            [rank] = _RANK.unpack(stream.recv(_RANK.size))  # it has the file
            with changed:
                served.add(rank)
                changed.notify()

    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(address)
    listening.listen()
    listener = AuthenticatingListener(listening, secret, serve)
    try:
        with changed:
            if not changed.wait_for(lambda: len(served) == shard.size, SECONDS):
                raise _lonely(shard)
    finally:
        listener.close()
    return file


def _fetch(address: str, secret: bytes, shard: TensorSlice) -> int:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        # Nobody listens yet, many wait to be accepted, or a loaded machine was slow to prove the key.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream, suppress(OSError):
            set_timeout(stream, socket.SO_SNDTIMEO, 1)
            stream.connect(address)
            if is_authenticated(stream, secret, listens=False) and (
                files := socket.recv_fds(stream, 1, 1)[1]
            ):
                stream.sendall(_RANK.pack(shard.rank))
                return files[0]
        time.sleep(_BETWEEN_TRIES)
    raise _lonely(shard)


def _lonely(shard: TensorSlice) -> MindBatchError:
    return MindBatchError(
        f"tensor rank {shard.rank} of {shard.size}: the others have not come within {SECONDS:.0f} seconds"
    )
