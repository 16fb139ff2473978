"""Output of a job's process: a file of bounded size, its last lines, and what is shown as it comes."""

import os
import re
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path

from mindbatch.io.errors import ConfigError
from mindbatch.io.regular_file import check_own, open_own
from mindbatch.io.screen_text import say
from mindbatch.io.storage import Storage, TemporaryFolder, reason_of, write_whole
from mindbatch.launch.rank_table import RankTable

MAX_BYTES = 8 << 20
"""Most bytes of the log file, and of the one before it: a full one is renamed to NAME.1 and begun anew."""

LONGEST_LINE = 400
"""Characters that are kept of one of the last lines."""

MAX_LAST_LINES = 8

_LONGEST_PENDING = 1 << 16  # bytes of a line that does not end
_CHATTER = re.compile(r"\[(INFO|DEBUG)\]|\s*-+\s*$|\s*$")  # MindSpore's own, which closes whatever went wrong


class ProcessLog:
    """The output of one process. Used by one thread, but for `last_lines`.

    path: of a file of our own, made with mode 0600; what an earlier process left there becomes NAME.1.
    name: what its lines are shown under on standard error, as they come; None shows none.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        """Raises OSError where the file cannot be made, or something else has its name."""
        self.path = path
        self._name = name
        self._last: deque[str] = deque(maxlen=MAX_LAST_LINES)
        self._pending = b""
        self._size = 0
        self._file: int | None = self._begun()

    def write(self, chunk: bytes) -> None:
        """Takes what the process has printed. A disk that is full ends the file, not the process."""
        try:
            self._write_to_file(chunk)
        except OSError as error:
            self._last.append(f"(its log {self.path} ends here: {error.strerror})")
            self._close_file()
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        if len(self._pending) > _LONGEST_PENDING:
            lines, self._pending = [*lines, self._pending], b""
        for line in lines:
            self._take(line)

    def close(self) -> None:
        if self._pending:
            self._take(self._pending)
            self._pending = b""
        self._close_file()

    def last_lines(self) -> tuple[str, ...]:
        """Returns the last lines that say something, of bounded length and not yet fit for a terminal."""
        return tuple(self._last)

    def _take(self, line: bytes) -> None:
        text = line.decode("utf-8", errors="replace").rstrip("\r")
        if not _CHATTER.match(text):
            self._last.append(text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 3]}...")
        if self._name is not None:
            try:
                say(text, name=self._name)
            except OSError:  # nobody reads that any more; the process and its log go on
                self._name = None

    def _begun(self) -> int:
        check_own(self.path)
        before = self.path.with_name(f"{self.path.name}.1")
        check_own(before)
        with suppress(FileNotFoundError):
            os.replace(self.path, before)
        file = open_own(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.fchmod(file, 0o600)
        self._size = 0
        return file

    def _write_to_file(self, chunk: bytes) -> None:
        if self._file is not None and self._size + len(chunk) > MAX_BYTES:
            self._close_file()
            self._file = self._begun()
        rest = memoryview(chunk)
        while rest and self._file is not None:
            written = os.write(self._file, rest)
            rest = rest[written:]
            self._size += written

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def made_folder(folder: Path, key: str = "launch.log_dir=") -> Path:
    """Makes a folder of the user's if it does not exist.

    key: what stands before it in messages. Raises ConfigError where that is not possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{key}{folder}: cannot be made ({reason_of(error)})") from error
    return folder.absolute()


def temporary_folder(owner: object) -> Path:
    """Makes a folder that is removed with its owner."""
    folder = TemporaryFolder()
    weakref.finalize(owner, folder.remove)
    return folder.path


def replica_table(logs: Path, replica: int) -> Path:
    """Names the file with the rank table of one replica, whose ranks are numbered from 0."""
    return logs / f"rank_table_{replica}.json"


def write_replica_tables(table: RankTable, logs: Path, replica_size: int) -> None:
    for replica in range(table.num_ranks // replica_size):
        ranks = range(replica * replica_size, (replica + 1) * replica_size)
        write_whole(replica_table(logs, replica), table.of_ranks(ranks).to_bytes(), Storage())
