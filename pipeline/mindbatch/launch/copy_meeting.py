"""Rendezvous of a command's copies on one host: they find copy 0 by a file that only their user can read."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from mindbatch.io.errors import MindBatchError
from mindbatch.io.regular_file import read_regular
from mindbatch.io.screen_text import say
from mindbatch.io.storage import reason_of, write_whole
from mindbatch.launch.rank_environment import Address

SECONDS = 600.0
"""For the copies to come to the calls that load their model."""

SAME_CALLS = "under a launcher every process must make the same calls, in the same order"

_QUIET_SECONDS = 10.0
_BETWEEN_LOOKS = 0.05
_MOST_BYTES = 4096
_numbers = itertools.count()


class Front(NamedTuple):
    """Address where copy 0 listens for the others, and the key of the job."""

    address: Address
    key: bytes


@dataclass(frozen=True)
class CopyMeeting:
    """The file of one model of a job; it is there only while its copies come.

    Whoever starts the copies tells them no secret, so that copy 0 writes the key down: in a folder that
    nobody else may enter, and that is no link.
    """

    file: Path

    @classmethod
    def next_of(cls, identity: str) -> CopyMeeting:
        """The next meeting of this process: the n-th model of each copy is the same.

        identity: of the job among those on this host.

        Raises:
            MindBatchError: the folder cannot be made, or somebody else has its name.
        """
        folder = Path(tempfile.gettempdir()) / f"mindbatch-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise MindBatchError(f"{folder}: cannot be made ({reason_of(error)})") from error
        there = folder.lstat()
        if there.st_uid != os.getuid() or there.st_mode & 0o170077 != 0o040000:
            raise MindBatchError(f"{folder}: must be a folder of this user that nobody else may enter")
        return cls(folder / sha256(f"{identity} {next(_numbers)}".encode()).hexdigest()[:32])

    @contextmanager
    def opened(self, front: Front) -> Iterator[None]:
        """Says where copy 0 is, while the others come.

        Raises:
            MindBatchError: copy 0 of another job waits at the same place.
        """
        if self._found() is not None:
            raise MindBatchError(
                "launch: another job on this host has the same launcher, address or rank table, and its "
                "processes are still coming; start this one when they have, or with another port or table"
            )
        host, port = front.address
        content = {"address": [host, port], "key": front.key.hex(), "process": _identity_of(os.getpid())}
        write_whole(self.file, json.dumps(content).encode())
        try:
            yield
        finally:
            self.file.unlink(missing_ok=True)

    def wait(
        self,
        notice: Callable[[str], None],
        seconds: float = SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Front:
        """Waits for copy 0 and returns its `Front`. notice: called meanwhile; after a while the user is told.

        Raises:
            MindBatchError: it has not come in all that time.
        """
        began, is_told = time.monotonic(), False
        while (front := self._found()) is None:
            notice("waiting for rank 0")
            waited = time.monotonic() - began
            if waited >= seconds:
                raise MindBatchError(
                    f"launch: rank 0 has not loaded this model in {seconds:.0f} s: {SAME_CALLS}"
                )
            if waited >= _QUIET_SECONDS and not is_told:
                say("launch: waiting for rank 0 to load this model, too")
                is_told = True
            sleep(_BETWEEN_LOOKS)
        return front

    def _found(self) -> Front | None:
        """Reads the file of copy 0; None if it is missing or malformed, or copy 0 has ended."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(read_regular(self.file, _MOST_BYTES))
            process, (host, port) = content["process"], content["address"]
            if process == _identity_of(process[0]):
                return Front((str(host), int(port)), bytes.fromhex(content["key"]))
        return None


def _identity_of(process: int) -> list[int]:
    """A process and when it was started (proc(5)): another one may get its number."""
    fields = Path(f"/proc/{int(process)}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return [process, int(fields[19])]
