"""Ports of this machine: free ones, and which process listens on one."""

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path

from mindbatch.io.errors import MindBatchError

_LISTEN = "0A"  # of proc(5), net/tcp


def family_of(host: str) -> socket.AddressFamily:
    """Returns the family of an address or a name; a name is looked up as IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class HeldPort:
    """A free port that the system gives to nobody else until it is closed.

    A bound socket that does not listen holds it. A process that knows the number may listen there all the
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
    wanted = _sockets_listening(port)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(os.readlink(file) in wanted for file in (process / "fd").iterdir()):
                name = (process / "comm").read_text(errors="replace").strip()
                return f"process {process.name} ({name})"
    return "another process"


def _sockets_listening(port: int) -> set[str]:
    """Collects the sockets that listen on a port, as a process has them among its open files."""
    sockets = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (Path("/proc/net") / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    return sockets
