"""The ledger: finished rows appended to parts, committed in groups, and found again by the next session."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mindbatch.io.closing import Closing
from mindbatch.io.errors import ConfigError
from mindbatch.io.regular_file import open_regular
from mindbatch.io.storage import Storage, StorageError, reason_of
from mindbatch.ledger.entries import Entry, Kind, decode, encode
from mindbatch.ledger.part import (
    ComputedWith,
    PartName,
    PartReading,
    PartWriter,
    check_header,
    list_parts,
    make_part,
    read_part,
)
from mindbatch.ledger.run_folder import RunFolder

MAX_OPEN_PARTS = 16


@dataclass(frozen=True, slots=True)
class Place:
    """An entry's line: the number of its part, and offset and length in bytes, its newline included."""

    part: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """An entry of an earlier session, without its body."""

    key: str
    row: str
    kind: Kind
    place: Place


class PartFiles:
    """The parts of a folder, open for reading at any place; no more than MAX_OPEN_PARTS at once."""

    def __init__(self, parts: Path) -> None:
        self._parts = parts
        self._open: dict[int, int] = {}

    def path(self, place: Place) -> Path:
        return PartName.from_number(place.part).path(self._parts)

    def line(self, place: Place) -> bytes:
        """The bytes at a place; fewer when the file has become shorter. Raises StorageError."""
        try:
            return os.pread(self._file(place), place.length, place.offset)
        except OSError as error:
            raise StorageError.reading(self.path(place), error) from error

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _file(self, place: Place) -> int:
        if place.part not in self._open:
            if len(self._open) >= MAX_OPEN_PARTS:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[place.part] = open_regular(self.path(place))
        return self._open[place.part]


MAX_PART_BYTES = 64 * 2**20
MAX_WAITING_ROWS = 64
MAX_WAITING_BYTES = 4 * 2**20
MAX_WAITING_SECONDS = 2.0


class _OpenPart(NamedTuple):
    """Part of the ledger that this process appends to."""

    name: PartName
    end: PartWriter


class Ledger(Closing):
    """The parts of a run's folder. First `recover`, then `append` and `commit`; only under the folder's lock.

    An entry is safe, whatever happens to process and power, once the commit after its append has returned.
    Recovering changes nothing on the disk: repairs are made when the first entry is appended, so a folder can
    be looked at while a run writes there. writer: the number of this process among those that write to the
    folder at once, each to its own parts.

    notes: what was found damaged, a line each, complete once `recover` has been read to its end.
    num_safe: entries on the disk; what a failure reports as safe.
    computed_with: what the rows are that are appended from now on; said before the first one.
    """

    def __init__(
        self,
        folder: RunFolder,
        fingerprint: str,
        storage: Storage | None = None,
        writer: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.notes: list[str] = []
        self.num_safe = 0
        self.computed_with: ComputedWith | None = None
        self._folder = folder
        self._fingerprint = fingerprint
        self._storage = storage or Storage()
        self._writer = writer
        self._clock = clock
        self._read: dict[PartName, PartReading] | None = None
        self._files = PartFiles(folder.parts)
        self._open: _OpenPart | None = None  # replaced as a whole: an interrupt may come anywhere
        self._oldest = 0.0
        self._failure: StorageError | None = None

    def recover(self) -> Iterator[Recovered]:
        """Yields good entries of all writers in the order of writing; of several for a row the last holds.

        ConfigError at once, naming each, when there are parts that were written with other settings;
        StorageError when a part cannot be read.
        """
        try:
            names = list_parts(self._folder.parts)
            faults = [check_header(name.path(self._folder.parts), self._fingerprint) for name in names]
        except OSError as error:
            raise StorageError.reading(self._folder.parts, error) from error
        if any(faults):
            raise ConfigError([fault for fault in faults if fault])
        self._read = {}
        return self._recover(names, self._read)

    def _recover(self, names: list[PartName], read: dict[PartName, PartReading]) -> Iterator[Recovered]:
        for name in names:
            reading = PartReading(name.path(self._folder.parts))
            try:
                for offset, length, entry in read_part(reading):
                    self.num_safe += 1
                    place = Place(name.number, offset, length)
                    yield Recovered(entry.key, entry.row, entry.kind, place)
            except OSError as error:
                raise StorageError.reading(reading.path, error) from error
            read[name] = reading
            self.notes += reading.notes()

    def part_computed_with(self, part: int) -> ComputedWith | None:
        """Looks up what the rows of a part were computed with, by its number; None if unknown."""
        reading = (self._read or {}).get(PartName.from_number(part))
        return self.computed_with if reading is None else reading.computed_with

    def append(self, entry: Entry) -> Place:
        """Takes a finished row; it is safe after the next commit. Raises StorageError as `commit` does."""
        line = encode(entry)
        with self._reporting():
            part = self._room_for(len(line))
            if not part.end.num_waiting:
                self._oldest = self._clock()
            return Place(part.name.number, part.end.append(line), len(line))

    def commit(self) -> None:
        """Writes and syncs all that was appended.

        StorageError says how many rows are safe and how to go on; the ledger takes nothing more after it.
        """
        with self._reporting():
            if self._open is not None:
                self.num_safe += self._open.end.commit()

    def commit_if_due(self, step_seconds: float) -> bool:
        """Commits when enough rows wait, or when the oldest would wait too long if it waited a step longer.

        step_seconds: how long a step of the engine takes. Returns whether it committed.
        """
        if self._open is None or not self._open.end.num_waiting:
            return False
        end = self._open.end
        is_full = end.num_waiting >= MAX_WAITING_ROWS or end.num_waiting_bytes >= MAX_WAITING_BYTES
        if not is_full and self._clock() - self._oldest + step_seconds <= MAX_WAITING_SECONDS:
            return False
        self.commit()
        return True

    def read(self, place: Place) -> Entry:
        """The entry at a place, on the disk or not yet. Raises StorageError when it is not as it was."""
        entry = decode(self._line(place))
        if entry is None:
            raise StorageError(
                f"{self._files.path(place)}: the entry at byte {place.offset} is damaged; "
                "run the same command again: that row is done anew"
            )
        return entry

    def close(self) -> None:
        """Commits what was appended, unless a write has failed, and closes the files."""
        try:
            if self._failure is None:
                self.commit()
        finally:
            self._files.close()
            if self._open is not None:
                self._open.end.close()
                self._open = None

    def _line(self, place: Place) -> bytes:
        if self._open is not None and place.part == self._open.name.number:
            waiting = self._open.end.waiting_line(place.offset)
            if waiting is not None:
                return waiting
        return self._files.line(place)

    def _room_for(self, num_bytes: int) -> _OpenPart:
        """The part to append to: the open one, unless it is full."""
        if self._open is None:
            self._open = self._first_part(num_bytes)
        elif self._open.end.offset + num_bytes > MAX_PART_BYTES:
            # Committed before there is a later part: nobody writes to the end of an earlier one again.
            self.num_safe += self._open.end.commit()
            full, self._open = self._open, self._new_part()
            full.end.close()
        return self._open

    def _first_part(self, num_bytes: int) -> _OpenPart:
        """The writer's last part, if it has room and rows computed alike, and nobody wrote one after it."""
        assert self._read is not None, "append before recover"
        self._settle()
        names = list_parts(self._folder.parts)
        reading = self._read.get(names[-1]) if names else None
        if reading is None or not reading.has_header or names[-1].writer != self._writer:
            return self._new_part()
        if reading.end + num_bytes > MAX_PART_BYTES or reading.computed_with != self.computed_with:
            PartWriter(reading.path, reading.end, self._storage).close()  # which cuts off what is torn
            return self._new_part()
        return _OpenPart(names[-1], PartWriter(reading.path, reading.end, self._storage))

    def _new_part(self) -> _OpenPart:
        names = list_parts(self._folder.parts)
        name = PartName(names[-1].ordinal + 1 if names else 0, self._writer)
        make_part(name, self._folder.parts, self._fingerprint, self._storage, self.computed_with)
        path = name.path(self._folder.parts)
        return _OpenPart(name, PartWriter(path, path.stat().st_size, self._storage))

    def _settle(self) -> None:
        """Makes durable what killed sessions left to the system: names, and the last part of each writer."""
        self._storage.sync_folder(self._folder.parts)
        last = {name.writer: name for name in list_parts(self._folder.parts)}
        for name in last.values():
            file = self._storage.append(name.path(self._folder.parts))
            try:
                self._storage.sync(file)
            finally:
                self._storage.close(file)

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
