"""Ports of this machine: free ones, who listens on one, and listening for this machine alone."""

import ctypes
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from mindbatch.io.errors import MindBatchError

_LISTEN = "0A"  # of proc(5), net/tcp
_PIDFD_GETFD = 438  # on every architecture


def family_of(host: str) -> socket.AddressFamily:
    """Returns the family of an address or a name; a name is looked up as IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class HeldPort:
    """A free port that the system gives to nobody else until it is closed.

    A bound socket that does not listen holds it. A process that is told the number may listen there all the
    same, if it sets SO_REUSEADDR, as MindSpore's scheduler does.
    """

    def __init__(self, host: str) -> None:
        """Raises MindBatchError where `host` is none of this machine's addresses."""
        self._socket = socket.socket(family_of(host))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, 0))
        except OSError as error:
            self._socket.close()
            raise MindBatchError(f"{host}: no address of this machine ({error.strerror or error})") from error
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Lets it go; it may be called again."""
        self._socket.close()


def port_error(host: str, port: int) -> str | None:
    """Explains why this process cannot listen there; None if it can."""
    with socket.socket(family_of(host)) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except PermissionError:
            return "the system keeps this port for itself; use one above 1023"
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"{_listener(port)} listens on this port already; use another one"
            return f"cannot be listened on ({error.strerror or error})"
    return None


def _listener(port: int) -> str:
    wanted = {listening.file for listening in _listening() if listening.port == port}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(os.readlink(file) in wanted for file in (process / "fd").iterdir()):
                name = (process / "comm").read_text(errors="replace").strip()
                return f"process {process.name} ({name})"
    return "another process"


class _Listening(NamedTuple):
    """A listening socket of this machine. file: as a process has it among its open files."""

    file: str
    port: int
    is_open_to_all: bool


def _listening() -> Iterator[_Listening]:
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (Path("/proc/net") / name).read_text().splitlines()[1:]:
                fields = line.split()
                address, _, port = fields[1].rpartition(":")
                if fields[3] == _LISTEN:
                    yield _Listening(f"socket:[{fields[9]}]", int(port, 16), int(address, 16) == 0)


def keep_on_this_host(process: int) -> bool:
    """Binds the sockets at which a process listens at all addresses to the loopback interface.

    OpenMPI's mpirun listens so, whatever interfaces it is told to use, and obeys whoever connects. The kernel
    hands out the sockets of a process that this one has started, and a socket can be bound to an interface at
    any time: from then on nothing that comes in by another one reaches it.

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
    wanted = {listening.file for listening in _listening() if listening.is_open_to_all}
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            if os.readlink(entry) in wanted:
                yield int(entry.name)


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
