"""A journal: lines that are appended in groups, which record the finished work of runs and reshards.

Once a commit has returned, its lines are on the disk; the next session truncates the torn lines that a kill
or a power cut may leave after them.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from mindbatch.io.storage import Storage


@dataclass(frozen=True, slots=True)
class _Tail:
    """The end of the file: `size` bytes are on the disk, `waiting` are not."""

    size: int
    waiting: tuple[bytes, ...] = ()
    num_bytes: int = 0


class JournalWriter:
    """Appends to a journal, whose valid lines end at `size`, where the file is truncated. Raises OSError.

    The tail is one value that is replaced as a whole: whenever an interrupt comes, either no line of a group
    counts as written, and the next commit first truncates the file, or all of them do.
    """

    def __init__(self, path: Path, size: int, storage: Storage) -> None:
        self._storage = storage
        self._tail = _Tail(size)
        self._is_torn = False
        self._file: int | None = storage.append(path)
        try:
            storage.truncate(self._file, size)
        except BaseException:
            self.close()
            raise

    @property
    def num_waiting(self) -> int:
        return len(self._tail.waiting)

    @property
    def num_waiting_bytes(self) -> int:
        return self._tail.num_bytes

    def append(self, line: bytes) -> int:
        """Queues a line for the next commit; returns its offset."""
        tail = self._tail
        self._tail = _Tail(tail.size, (*tail.waiting, line), tail.num_bytes + len(line))
        return tail.size + tail.num_bytes

    def commit(self) -> int:
        """Writes and syncs the queued lines; returns their number. A failure closes the file."""
        tail = self._tail
        assert self._file is not None, "commit to a closed file"
        if not tail.waiting:
            return 0
        try:
            if self._is_torn:
                self._storage.truncate(self._file, tail.size)
            # Before the write and not after it: an interrupt in between makes the next commit cut off first.
            self._is_torn = True
            self._storage.write(self._file, b"".join(tail.waiting))
            self._storage.sync(self._file)
        except OSError:
            self._give_up(tail.size)
            raise
        self._tail = _Tail(tail.size + tail.num_bytes)
        self._is_torn = False
        return len(tail.waiting)

    def waiting_line(self, offset: int) -> bytes | None:
        """Returns the line at an offset if it is not on the disk yet."""
        start = self._tail.size
        for line in self._tail.waiting:
            if start == offset:
                return line
            start += len(line)
        return None

    def close(self) -> None:
        """Closes the file; queued lines are lost."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                self._storage.close(file)

    def _give_up(self, size: int) -> None:
        """Truncates the file if the disk allows it; reading repairs it as well."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._storage.truncate(self._file, size)
        self.close()
