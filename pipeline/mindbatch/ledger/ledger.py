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
"""Settings by name that affect the last bits of results, besides those of the run."""
MAX_WAITING_ROWS = 64
MAX_WAITING_BYTES = 4 * 2**20
MAX_WAITING_SECONDS = 2.0
_MAX_LINES_NAMED = 5


@dataclass(frozen=True, slots=True)
class EntryLocation:
    """The location of an entry: the number of its session, and offset and length of its line in bytes."""

    session: int
    offset: int
    length: int


@dataclass(slots=True)
class _Reading:
    """The state of reading the file, whose valid lines end at byte `end` of `size`.

    session: the number of the last session. damaged: numbers of the damaged lines before `end`.
    """

    end: int = 0
    size: int = 0
    session: int = 0
    damaged: list[int] = field(default_factory=list)

    def notes(self, path: Path) -> Iterator[str]:
        """Yields a line for the user for each kind of damage."""
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
    Recovering changes nothing on the disk: the first append makes repairs, so a folder can be read while a
        run
    writes there. Each session begins with a line that records `computed_with`; if that line is damaged, the
    rows of the session run again.

    notes: a line for each kind of damage, complete once `recover` has been read to its end.
    num_safe: number of entries on the disk, which a failure reports as safe.
    computed_with: settings with which the rows are computed that are appended from now on.
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

    def recover(self) -> Iterator[tuple[Entry, EntryLocation]]:
        """Yields valid entries and their locations in the order of writing; the last one of a row counts.

        Raises ConfigError at once if they were written with other settings or in another format, and
        StorageError if the file cannot be read.
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
        """Returns the error of a file with this first line; None if it is damaged."""
        match first:
            case {"ledger": int(version)} if version != FORMAT:
                return f"written in format {version} of the ledger; this mindbatch reads format {FORMAT}"
            case {"fingerprint": str(other)} if other != self._fingerprint:
                return f"written with other settings (fingerprint {other}; this run has {self._fingerprint})"
        return None

    def _recover(self) -> Iterator[tuple[Entry, EntryLocation]]:
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
                    yield entry, EntryLocation(reading.session, offset, len(line))
                else:
                    reading.damaged.append(number)
        self.notes += reading.notes(self._folder.ledger)
        self._read = reading

    def _is_begin(self, content: dict[str, object]) -> bool:
        return content.get("ledger") == FORMAT and content.get("fingerprint") == self._fingerprint

    def computed_with_in(self, session: int) -> ComputedWith:
        return self._sessions[session]

    def append(self, entry: Entry) -> EntryLocation:
        """Queues a finished row, which is safe after the next commit. Raises StorageError as `commit`
        does."""
        with self._reporting():
            if self._writer is None:
                self._writer = self._begin()
            line = encode(entry, self._session)
            if not self._writer.num_waiting:
                self._oldest = self._clock()
            return EntryLocation(self._session, self._writer.append(line), len(line))

    def commit(self) -> None:
        """Writes and syncs the appended entries.

        Raises StorageError with the number of safe rows and a remedy; every later call raises it again.
        """
        with self._reporting():
            if self._writer is not None:
                self.num_safe += self._writer.commit()

    def commit_if_due(self, step_seconds: float) -> bool:
        """Commits if enough rows wait, or the oldest would wait too long after another step.

        step_seconds: duration of a step of the engine. Returns True if it committed.
        """
        writer = self._writer
        if writer is None or not writer.num_waiting:
            return False
        is_full = writer.num_waiting >= MAX_WAITING_ROWS or writer.num_waiting_bytes >= MAX_WAITING_BYTES
        if not is_full and self._clock() - self._oldest + step_seconds <= MAX_WAITING_SECONDS:
            return False
        self.commit()
        return True

    def read(self, location: EntryLocation) -> Entry:
        """Returns the entry at a location, on the disk or not yet. Raises StorageError if it is damaged."""
        entry = decode(self._line(location))
        if entry is None:
            raise StorageError(
                f"{self._folder.ledger}: the entry at byte {location.offset} is damaged; "
                "run the same command again: that row is done anew"
            )
        return entry

    def close(self) -> None:
        """Commits the appended entries, unless a write has failed, and closes the files."""
        try:
            if self._failure is None:
                self.commit()
        finally:
            if self._file is not None:
                os.close(self._file)
            if self._writer is not None:
                self._writer.close()
            self._file = self._writer = None

    def _line(self, location: EntryLocation) -> bytes:
        waiting = None if self._writer is None else self._writer.waiting_line(location.offset)
        if waiting is not None:
            return waiting
        with self._reading():
            if self._file is None:
                self._file = open_regular(self._folder.ledger)
            return os.pread(self._file, location.length, location.offset)

    def _begin(self) -> JournalWriter:
        """Opens the end of the file and begins a session there.

        The file and its name, which killed sessions may have left unsynced, are then durable.
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
        """Turns a failed write into an error for the user, which every later call raises again."""
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
