"""The journal of a reshard that is under way: which tensors are on the disk, each with its digest.

One line of JSON each. The first says which reshard it is; the others were appended after their tensors had
been synced. What a crash has torn at the end is cut off.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.reshard.write import Written
from mindbatch.regular_file import read_regular
from mindbatch.storage import Storage, StorageError, write_whole

_MAX_JOURNAL_BYTES = 1 << 30  # a line of 200 bytes for each tensor of a thousand ranks


@dataclass(frozen=True)
class JournalContent:
    """What a journal says. head: what `start` was given; size: bytes up to the first line that is torn."""

    head: Mapping[str, Any]
    written: tuple[Written, ...]
    size: int


def read_journal(path: Path) -> JournalContent | None:
    """What the journal says; None when it has no head. StorageError when it cannot be read."""
    try:
        data = read_regular(path, _MAX_JOURNAL_BYTES)
    except OSError as error:
        raise StorageError.reading(path, error) from error
    head: Mapping[str, Any] | None = None
    written: list[Written] = []
    size = 0
    for line in data.splitlines(keepends=True):
        entry = _entry(line)
        if entry is None:
            break
        if head is None:
            if not isinstance(entry, dict):
                break
            head = entry
        elif (found := _written(entry)) is not None:
            written.append(found)
        else:
            break
        size += len(line)
    return None if head is None else JournalContent(head, tuple(written), size)


class Journal:
    """The journal, opened to be written at its end. Raises StorageError."""

    def __init__(self, path: Path, storage: Storage) -> None:
        self._path = path
        self._storage = storage
        self._file: int | None = None

    def start(self, head: Mapping[str, Any]) -> None:
        """A new journal with nothing in it but the head."""
        write_whole(self._path, json.dumps(head, sort_keys=True).encode() + b"\n", self._storage)
        self._open()

    def go_on(self, content: JournalContent) -> None:
        """The journal that was read, without what is torn."""
        self._open()
        try:
            assert self._file is not None
            self._storage.truncate(self._file, content.size)
        except OSError as error:
            raise StorageError.writing(self._path, error) from error

    def append(self, written: Iterable[Written]) -> None:
        """Notes tensors that are on the disk; returns when the notes are there, too."""
        lines = [[each.file, each.tensor, each.digest, each.nbytes] for each in written]
        assert self._file is not None
        try:
            self._storage.write(self._file, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
            self._storage.sync(self._file)
        except OSError as error:
            raise StorageError.writing(self._path, error) from error

    def close(self) -> None:
        """Closes the file."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                self._storage.close(file)

    def _open(self) -> None:
        try:
            self._file = self._storage.append(self._path)
        except OSError as error:
            raise StorageError.writing(self._path, error) from error


def _entry(line: bytes) -> Any:
    if not line.endswith(b"\n"):
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _written(entry: object) -> Written | None:
    match entry:
        case [str(file), str(tensor), str(digest), int(nbytes)]:
            return Written(file, tensor, digest, nbytes)
    return None
