"""The ledger: finished rows appended to a file, committed in groups, and found again by the next session."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mindbatch.io.closing import Closing
from mindbatch.io.errors import ConfigError
from mindbatch.io.journal import JournalWriter
from mindbatch.io.regular_file import open_regular
from mindbatch.io.storage import Storage, StorageError, reason_of
from mindbatch.ledger.entries import Entry, decode, encode, entry_of, seal, unseal
from mindbatch.ledger.run_folder import RunFolder

FORMAT = 2
ComputedWith = dict[str, str | int]
"""By name, what decides the last bits of rows besides the settings of their run."""
MAX_WAITING_ROWS = 64
MAX_WAITING_BYTES = 4 * 2**20
MAX_WAITING_SECONDS = 2.0
_MAX_LINES_NAMED = 5


@dataclass(frozen=True, slots=True)
class Place:
    """An entry's line: the number of its session, and offset and length in bytes, its newline included."""

    session: int
    offset: int
    length: int


@dataclass(slots=True)
class _Reading:
    """How far the file was read: lines as they were written end at byte `end`, of `size`.

    session: the number of the last one that was begun. damaged: numbers of lines before `end`.
    """

    end: int = 0
    size: int = 0
    session: int = 0
    damaged: list[int] = field(default_factory=list)

    def notes(self, path: Path) -> Iterator[str]:
        """Yields a line for each kind of damage: what it is, and what becomes of it."""
        if self.damaged:
            lines = ", ".join(map(str, self.damaged[:_MAX_LINES_NAMED]))
            more = len(self.damaged) - _MAX_LINES_NAMED
            lines += f" and {more} more" if more > 0 else ""
            yield f"{path}: damaged at line {lines}; what was there runs again"
        if self.size > self.end:
            yield f"{path}: its last {self.size - self.end} bytes are torn; what was there runs again"


class Ledger(Closing):
    """The ledger of a run. First `recover`, then `append` and `commit`; only under the folder's lock.

    An entry is safe, whatever happens to process and power, once the commit after its append has returned.
    Recovering changes nothing on the disk: repairs are made when the first entry is appended, so a folder can
    be looked at while a run writes there. Each session that appends begins with a line that says what its
    rows were computed with; where that line is damaged its rows run again.

    notes: what was found damaged, a line each, complete once `recover` has been read to its end.
    num_safe: entries on the disk; what a failure reports as safe.
    computed_with: what the rows are that are appended from now on; said before the first one.
    """

    def __init__(
        self,
        folder: RunFolder,
        fingerprint: str,
        storage: Storage | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.notes: list[str] = []
        self.num_safe = 0
        self.computed_with: ComputedWith = {}
        self._folder = folder
        self._fingerprint = fingerprint
        self._storage = storage or Storage()
        self._clock = clock
        self._session = 0  # the number of this one, once it has begun
        self._sessions: dict[int, ComputedWith] = {}
        self._read: _Reading | None = None
        self._file: int | None = None
        self._writer: JournalWriter | None = None  # replaced as a whole: an interrupt may come anywhere
        self._oldest = 0.0
        self._failure: StorageError | None = None

    def recover(self) -> Iterator[tuple[Entry, Place]]:
        """Yields good entries and their places, in the order of writing; of several for a row the last holds.

        ConfigError at once when they were written with other settings, or in another format; StorageError
        when the file cannot be read.
        """
        path = self._folder.ledger
        with self._reading():
            if not path.exists():
                self._read = _Reading()
                return iter(())
            with open(open_regular(path), "rb") as file:
                error = self._error(unseal(file.readline()))
        if error is not None:
            raise ConfigError(f"{path}: {error}")
        return self._recover()

    def _error(self, first: dict[str, object] | None) -> str | None:
        """The error of a file with this first line; a damaged one is none."""
        match first:
            case {"ledger": int(version)} if version != FORMAT:
                return f"written in format {version} of the ledger; this mindbatch reads format {FORMAT}"
            case {"fingerprint": str(other)} if other != self._fingerprint:
                return f"written with other settings (fingerprint {other}; this run has {self._fingerprint})"
        return None

    def _recover(self) -> Iterator[tuple[Entry, Place]]:
        reading, unsealed = _Reading(), list[int]()
        with self._reading(), open(open_regular(self._folder.ledger), "rb") as file:
            for number, line in enumerate(file, start=1):
                offset, reading.size = reading.size, reading.size + len(line)
                content = unseal(line)
                if content is None:
                    unsealed.append(number)
                    continue
                reading.end = reading.size
                reading.damaged += unsealed  # not the torn end, then: a good line follows
                unsealed.clear()
                entry = entry_of(content)
                if self._is_begin(content):
                    reading.session = content["session"]
                    self._sessions[reading.session] = content["computed_with"]
                elif entry is not None and content.get("session") == reading.session:
                    self.num_safe += 1
                    yield entry, Place(reading.session, offset, len(line))
                else:
                    reading.damaged.append(number)
        self.notes += reading.notes(self._folder.ledger)
        self._read = reading

    def _is_begin(self, content: dict[str, object]) -> bool:
        return content.get("ledger") == FORMAT and content.get("fingerprint") == self._fingerprint

    def computed_with_in(self, session: int) -> ComputedWith:
        return self._sessions[session]

    def append(self, entry: Entry) -> Place:
        """Takes a finished row; it is safe after the next commit. Raises StorageError as `commit` does."""
        with self._reporting():
            if self._writer is None:
                self._writer = self._begin()
            line = encode(entry, self._session)
            if not self._writer.num_waiting:
                self._oldest = self._clock()
            return Place(self._session, self._writer.append(line), len(line))

    def commit(self) -> None:
        """Writes and syncs all that was appended.

        StorageError says how many rows are safe and how to go on; the ledger takes nothing more after it.
        """
        with self._reporting():
            if self._writer is not None:
                self.num_safe += self._writer.commit()

    def commit_if_due(self, step_seconds: float) -> bool:
        """Commits when enough rows wait, or when the oldest would wait too long if it waited a step longer.

        step_seconds: how long a step of the engine takes. Returns whether it committed.
        """
        writer = self._writer
        if writer is None or not writer.num_waiting:
            return False
        is_full = writer.num_waiting >= MAX_WAITING_ROWS or writer.num_waiting_bytes >= MAX_WAITING_BYTES
        if not is_full and self._clock() - self._oldest + step_seconds <= MAX_WAITING_SECONDS:
            return False
        self.commit()
        return True

    def read(self, place: Place) -> Entry:
        """The entry at a place, on the disk or not yet. Raises StorageError when it is not as it was."""
        entry = decode(self._line(place))
        if entry is None:
            raise StorageError(
                f"{self._folder.ledger}: the entry at byte {place.offset} is damaged; "
                "run the same command again: that row is done anew"
            )
        return entry

    def close(self) -> None:
        """Commits what was appended, unless a write has failed, and closes the files."""
        try:
            if self._failure is None:
                self.commit()
        finally:
            if self._file is not None:
                os.close(self._file)
            if self._writer is not None:
                self._writer.close()
            self._file = self._writer = None

    def _line(self, place: Place) -> bytes:
        waiting = None if self._writer is None else self._writer.waiting_line(place.offset)
        if waiting is not None:
            return waiting
        with self._reading():
            if self._file is None:
                self._file = open_regular(self._folder.ledger)
            return os.pread(self._file, place.length, place.offset)

    def _begin(self) -> JournalWriter:
        """Opens the end of the file and begins a session there.

        What killed sessions left to the system, of the file and of its name, is durable when it returns.
        """
        assert self._read is not None, "append before recover"
        self._session = self._read.session + 1
        begin = {"ledger": FORMAT, "fingerprint": self._fingerprint, "session": self._session}
        writer = JournalWriter(self._folder.ledger, self._read.end, self._storage)
        try:
            writer.append(seal({**begin, "computed_with": self.computed_with}))
            writer.commit()
            self._storage.sync_folder(self._folder.path)
        except BaseException:
            writer.close()
            raise
        self._sessions[self._session] = self.computed_with
        return writer

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError.reading(self._folder.ledger, error) from error

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Tells the user what a failed write means for the run, at this time and at every later one."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except (OSError, StorageError) as error:
            cause = error.__cause__ if isinstance(error, StorageError) else error
            reason = reason_of(cause) if isinstance(cause, OSError) else str(error)
            self._failure = StorageError(
                f"{self._folder.path}: cannot be written ({reason}); {self.num_safe} finished rows are safe, "
                "and the same command resumes when that is mended"
            )
            raise self._failure from error
