"""Listening sockets of other people's programs, which are to be reached from this host only.

OpenMPI's mpirun listens at all addresses, whatever interfaces it is told to use, and obeys whoever connects.
The kernel hands out the sockets of a process that this one has started, and a socket can be bound to an
interface at any time: from then on nothing that comes in by another one reaches it.
"""

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

_LISTEN = "0A"  # of proc(5), net/tcp
_PIDFD_GETFD = 438  # on every architecture


def keep_on_this_host(process: int) -> bool:
    """Binds the sockets at which a process listens at all addresses to the loopback interface.

    Returns whether that was possible; True where it listens at none.
    """
    try:
        for number in [*_open_to_all(process)]:
            with closing(_socket_of(process, number)) as listening:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
    except OSError:  # a kernel, or a container, that does not allow it
        return not Path(f"/proc/{process}").exists()
    return True


def _open_to_all(process: int) -> Iterator[int]:
    """The descriptors of sockets that listen at 0.0.0.0 or ::."""
    wanted = {f"socket:[{inode}]" for name in ("tcp", "tcp6") for inode in _inodes(Path("/proc/net") / name)}
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            if os.readlink(entry) in wanted:
                yield int(entry.name)


def _inodes(table: Path) -> Iterator[str]:
    with suppress(FileNotFoundError):
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and not int(fields[1].partition(":")[0], 16):
                yield fields[9]


def _socket_of(process: int, number: int) -> socket.socket:
    """A socket of another process, as one of this process. OSError where the kernel does not hand it out."""
    process_file = os.pidfd_open(process)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        copy = library.syscall(_PIDFD_GETFD, process_file, number, 0)
    finally:
        os.close(process_file)
    if copy < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return socket.socket(fileno=copy)
