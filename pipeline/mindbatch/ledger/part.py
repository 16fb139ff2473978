"""One part of the ledger: its name, its header, reading its lines, and writing on at its end."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindbatch.io.regular_file import open_regular
from mindbatch.io.storage import Storage, write_whole
from mindbatch.ledger.entries import Entry, decode, seal, unseal

FORMAT = 1
MAX_WRITERS = 1000
ComputedWith = dict[str, str | int]
"""By name, what decides the last bits of rows besides the settings of their run."""
_NAME = re.compile(r"part-(\d{3})-(\d{5})\.jsonl")
_MAX_LINES_NAMED = 5


@dataclass(frozen=True, order=True, slots=True)
class PartName:
    """`part-WRITER-ORDINAL.jsonl`. Names sort in the order of writing: a later session's come later."""

    # The order of the fields is that of sorting.
    ordinal: int
    writer: int

    @property
    def number(self) -> int:
        """The name as one number, for tables of places."""
        return self.ordinal * MAX_WRITERS + self.writer

    @classmethod
    def from_number(cls, number: int) -> PartName:
        """Inverts `number`."""
        return cls(*divmod(number, MAX_WRITERS))

    def path(self, parts: Path) -> Path:
        """The file in the folder of parts."""
        return parts / f"part-{self.writer:03d}-{self.ordinal:05d}.jsonl"


def list_parts(parts: Path) -> list[PartName]:
    """The parts in a folder, in the order of writing; none when there is no folder. Raises OSError."""
    if not parts.is_dir():
        return []
    return sorted(name for path in parts.iterdir() if (name := part_name(path.name)))


def part_name(text: str) -> PartName | None:
    """Parses the name of a file; None if it is no part's."""
    match = _NAME.fullmatch(text)
    return PartName(int(match[2]), int(match[1])) if match else None


def make_part(
    name: PartName, parts: Path, fingerprint: str, storage: Storage, computed_with: ComputedWith | None = None
) -> None:
    """Makes a part that has its header and nothing else; it is there durably, or not at all."""
    header: dict[str, Any] = {"ledger": FORMAT, "fingerprint": fingerprint, "writer": name.writer}
    if computed_with is not None:
        header["computed_with"] = computed_with
    write_whole(name.path(parts), seal(header), storage)


@dataclass(slots=True)
class PartReading:
    """Result of reading a part: good lines end at byte `end`, of `size`; `damaged` are line numbers.

    computed_with: what all its rows were; None if it was begun before that was recorded.
    """

    path: Path
    end: int = 0
    size: int = 0
    computed_with: ComputedWith | None = None
    damaged: list[int] = field(default_factory=list)

    @property
    def num_torn(self) -> int:
        """Bytes at the end that belong to no good line."""
        return self.size - self.end

    @property
    def has_header(self) -> bool:
        """True if the first line is as it was written; the rest is not read otherwise."""
        return self.end > 0

    def notes(self) -> list[str]:
        """A line for each kind of damage: what it is, and what becomes of it."""
        if not self.has_header:
            return [f"{self.path}: its first line is damaged; its rows run again"]
        notes = []
        if self.damaged:
            lines = ", ".join(map(str, self.damaged[:_MAX_LINES_NAMED]))
            more = len(self.damaged) - _MAX_LINES_NAMED
            lines += f" and {more} more" if more > 0 else ""
            notes.append(f"{self.path}: damaged at line {lines}; what was there runs again")
        if self.num_torn:
            notes.append(f"{self.path}: its last {self.num_torn} bytes are torn; what was there runs again")
        return notes


def check_header(path: Path, fingerprint: str) -> str | None:
    """The fault of a part that belongs to another run, or to a later format; a damaged header is none."""
    with open(open_regular(path), "rb") as file:
        header = unseal(file.readline())
    match header:
        case {"ledger": int(version)} if version != FORMAT:
            return f"{path}: written in format {version} of the ledger; this mindbatch reads format {FORMAT}"
        case {"fingerprint": str(other)} if other != fingerprint:
            return f"{path}: written with other settings (fingerprint {other}; this run has {fingerprint})"
    return None


def _computed_with(header_value: object) -> ComputedWith | None:
    if isinstance(header_value, dict) and all(
        isinstance(value, str | int) for value in header_value.values()
    ):
        return header_value
    return None


def read_part(reading: PartReading) -> Iterator[tuple[int, int, Entry]]:
    """Offset, length and content of each good entry, in order; `reading` is filled in on the way."""
    damaged: list[int] = []
    with open(open_regular(reading.path), "rb") as file:
        header = file.readline()
        reading.size = len(header)
        content = unseal(header)
        if content is None or "ledger" not in content:
            return
        reading.end = len(header)
        reading.computed_with = _computed_with(content.get("computed_with"))
        for number, line in enumerate(file, start=2):
            offset, reading.size = reading.size, reading.size + len(line)
            entry = decode(line)
            if entry is None:
                damaged.append(number)
                continue
            reading.end = reading.size
            reading.damaged += damaged  # not the torn end, then: good lines follow
            damaged.clear()
            yield offset, len(line), entry


@dataclass(frozen=True, slots=True)
class _Tail:
    """The end of the part: `size` bytes are on the disk, `waiting` are not."""

    size: int
    waiting: tuple[bytes, ...] = ()
    num_bytes: int = 0


class PartWriter:
    """Appends to a part whose good lines end at `size`; what is beyond is cut off. Raises OSError.

    The tail is one value that is replaced as a whole: wherever an interrupt comes, either nothing of a group
    counts as written, and the next commit first cuts off what may be there of it, or all of it does.
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
    def offset(self) -> int:
        """Byte where the next entry begins, those waiting included."""
        return self._tail.size + self._tail.num_bytes

    @property
    def num_waiting(self) -> int:
        """Entries that are not on the disk."""
        return len(self._tail.waiting)

    @property
    def num_waiting_bytes(self) -> int:
        """Bytes that are not on the disk."""
        return self._tail.num_bytes

    def append(self, line: bytes) -> int:
        """Takes an entry, for the next commit; returns its offset in the part."""
        tail = self._tail
        offset = self.offset
        self._tail = _Tail(tail.size, (*tail.waiting, line), tail.num_bytes + len(line))
        return offset

    def commit(self) -> int:
        """Writes and syncs what waits; returns the number of entries. A failure closes the part."""
        tail = self._tail
        assert self._file is not None, "commit to a closed part"
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
        """The entry at an offset, when it is not on the disk."""
        place = self._tail.size
        for line in self._tail.waiting:
            if place == offset:
                return line
            place += len(line)
        return None

    def close(self) -> None:
        """Closes the file; what waits is lost."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                self._storage.close(file)

    def _give_up(self, size: int) -> None:
        """Leaves a clean end if the disk allows it: reading would repair it as well."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._storage.truncate(self._file, size)
        self.close()
