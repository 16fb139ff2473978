"""Another host: a network namespace behind a cable that can be cut. Needs the rights of root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class NoNetworks(Exception):
    """This process may not make network namespaces."""


@dataclass(frozen=True)
class OtherHost:
    """A host that is reached at the other end of a cable.

    address: of this end of it. namespace: the file of the other host's network.
    """

    address: str
    namespace: str
    cable: str

    def cut(self) -> None:
        """From now on nothing arrives, on either side."""
        _do("ip", "link", "set", self.cable, "down")

    def heal(self) -> None:
        """What was sent meanwhile may arrive."""
        _do("ip", "link", "set", self.cable, "up")


@contextmanager
def other_host() -> Iterator[OtherHost]:
    """Raises NoNetworks where that is not allowed, or the programs `ip` and `unshare` are missing."""
    cable, there, subnet = f"mb{os.getpid()}", f"mt{os.getpid()}", f"10.213.{os.getpid() % 250}"
    try:
        with subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec sleep 86400"], stdout=-1
        ) as holder:
            assert holder.stdout is not None
            try:
                if not holder.stdout.readline():
                    raise NoNetworks
                _do("ip", "link", "add", cable, "type", "veth", "peer", "name", there)
                _do("ip", "link", "set", there, "netns", str(holder.pid))
                _do("ip", "address", "add", f"{subnet}.1/24", "dev", cable)
                _do("ip", "link", "set", cable, "up")
                inside = ("nsenter", "-t", str(holder.pid), "-n", "ip")
                _do(*inside, "address", "add", f"{subnet}.2/24", "dev", there)
                _do(*inside, "link", "set", there, "up")
                yield OtherHost(f"{subnet}.1", f"/proc/{holder.pid}/ns/net", cable)
            finally:
                holder.kill()  # the cable goes with the namespace
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoNetworks(str(error)) from error


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
