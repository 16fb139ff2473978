"""Location of an entry, and reading it there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mindbatch.io.regular_file import open_regular
from mindbatch.io.storage import StorageError
from mindbatch.ledger.entries import Kind
from mindbatch.ledger.part import PartName

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
