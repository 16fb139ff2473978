"""A line of the ledger, a JSON object whose last member is a check of the rest; appending lines in groups."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
import xxhash

from mindbatch.io.storage import Storage

Kind = Literal["result", "error"]

_CHECK = b',"check":"'
_END = b'"}\n'
_NUM_CHECK_BYTES = len(_CHECK) + 16 + len(_END)


@dataclass(frozen=True, slots=True)
class Entry:
    """One finished row. row: the digest of what was asked; body: the result, or the stage and reason."""

    key: str
    row: str
    kind: Kind
    body: dict[str, Any]


def encode(entry: Entry, session: int) -> bytes:
    """The entry's line, newline included. Keys in the body that are numbers become text; NaN becomes null.

    session: the number of the session that ran the row.
    """
    named = {"session": session, "key": entry.key, "row": entry.row, "kind": entry.kind, "body": entry.body}
    return seal(named)


def decode(line: bytes) -> Entry | None:
    """The entry of a line, newline included; None when it is torn, damaged or something else."""
    return entry_of(unseal(line))


def entry_of(content: dict[str, Any] | None) -> Entry | None:
    """The entry that a line says; None when it says something else."""
    match content:
        case {"key": str(key), "row": str(row), "kind": ("result" | "error") as kind, "body": dict(body)}:
            return Entry(key, row, kind, body)
    return None


def seal(content: dict[str, Any]) -> bytes:
    """A JSON object, not empty, as a line that ends in the XXH3 (64 bit, hex) of all before `,"check"`."""
    checked = orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)[:-1]
    return checked + _CHECK + xxhash.xxh3_64_hexdigest(checked).encode() + _END


def unseal(line: bytes) -> dict[str, Any] | None:
    """The content of a sealed line, the check among it; None unless every byte is as it was written."""
    checked = line[:-_NUM_CHECK_BYTES]
    if line[-_NUM_CHECK_BYTES:] != _CHECK + xxhash.xxh3_64_hexdigest(checked).encode() + _END:
        return None
    try:
        content = orjson.loads(line)
    except orjson.JSONDecodeError:  # sealed by something else
        return None
    return content if isinstance(content, dict) else None


@dataclass(frozen=True, slots=True)
class _Tail:
    """The end of the file: `size` bytes are on the disk, `waiting` are not."""

    size: int
    waiting: tuple[bytes, ...] = ()
    num_bytes: int = 0


class LedgerWriter:
    """Appends to the ledger, whose good lines end at `size`; what is beyond is cut off. Raises OSError.

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
    def num_waiting(self) -> int:
        return len(self._tail.waiting)

    @property
    def num_waiting_bytes(self) -> int:
        return self._tail.num_bytes

    def append(self, line: bytes) -> int:
        """Takes a line, for the next commit; returns its offset."""
        tail = self._tail
        self._tail = _Tail(tail.size, (*tail.waiting, line), tail.num_bytes + len(line))
        return tail.size + tail.num_bytes

    def commit(self) -> int:
        """Writes and syncs what waits; returns the number of lines. A failure closes the file."""
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
        """The line at an offset, when it is not on the disk."""
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
