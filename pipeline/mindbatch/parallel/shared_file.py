"""A file in memory that the ranks of one host share: its first rank makes it, and hands it to the others."""

from __future__ import annotations

import os
import socket
import struct
import time
from contextlib import suppress

from mindbatch.errors import MindBatchError
from mindbatch.parallel.topology import TensorSlice

SECONDS = 600.0
"""In which all ranks are expected: one may read its weights from a slow disk before."""
_CREDENTIALS = struct.Struct("3i")


def shared_file(name: str, shard: TensorSlice, nbytes: int) -> int:
    """The open file, filled with zeros, that all ranks of a slice get; nothing of it is in any folder.

    name: of the meeting, the same for these ranks and for no others of this host.

    Raises:
        MindBatchError: the other ranks have not come.
    """
    address = f"\0mindbatch-{name}"  # Linux's abstract names vanish with their sockets
    return _hand_out(address, shard, nbytes) if shard.rank == 0 else _fetch(address, shard)


def _hand_out(address: str, shard: TensorSlice, nbytes: int) -> int:
    file = os.memfd_create("mindbatch", os.MFD_CLOEXEC)
    os.ftruncate(file, nbytes)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen(shard.size)
        given, deadline = 1, time.monotonic() + SECONDS
        while given < shard.size:
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                stream, _ = listener.accept()
            except TimeoutError:
                raise _lonely(shard) from None
            with stream:
                if _is_own(stream):
                    socket.send_fds(stream, [b"\0"], [file])
                    given += 1
    return file


def _fetch(address: str, shard: TensorSlice) -> int:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream, suppress(ConnectionRefusedError):
            stream.connect(address)
            stream.settimeout(SECONDS)
            if _is_own(stream):
                files = socket.recv_fds(stream, 1, 1)[1]
                if files:
                    return files[0]
        time.sleep(0.02)
    raise _lonely(shard)


def _is_own(stream: socket.socket) -> bool:
    """Whether the process at the other end is one of this user."""
    found = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.getuid())


def _lonely(shard: TensorSlice) -> MindBatchError:
    return MindBatchError(
        f"tensor rank {shard.rank} of {shard.size}: the others have not come within {SECONDS:.0f} seconds"
    )
