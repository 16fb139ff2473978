"""One part of the ledger: its name, its header, reading its lines, and writing on at its end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindbatch.io.regular_file import open_regular
from mindbatch.io.storage import Storage, write_whole
from mindbatch.ledger.entries import Entry, decode, is_sound, seal, unseal

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
            if entry is None or not is_sound(entry):
                damaged.append(number)
                continue
            reading.end = reading.size
            reading.damaged += damaged  # not the torn end, then: good lines follow
            damaged.clear()
            yield offset, len(line), entry
