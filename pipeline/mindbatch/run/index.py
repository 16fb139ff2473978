"""The index of a dataset: every row, on disk, by its position and its key, with what has become of it."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.io.closing import Closing
from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import StorageError
from mindbatch.ledger.entries import Entry, EntryKind
from mindbatch.ledger.ledger import EntryLocation

MAX_NAMED = 10
"""Errors of one kind that are named; the others are counted."""
_ROWS_AT_ONCE = 500
_PAGE_CACHE_KIB = 1024

_TABLE = """
CREATE TABLE rows (
    position INTEGER PRIMARY KEY,
    rank INTEGER NOT NULL,
    key TEXT,
    source TEXT NOT NULL,
    line INTEGER NOT NULL,
    row BLOB,
    digest TEXT,
    stage TEXT,
    reason TEXT,
    kind TEXT,
    session INTEGER,
    start INTEGER,
    length INTEGER
)
"""


class RowStatus(NamedTuple):
    """Rows of a ledger that are not those of the index.

    changed: key and source of the first rows whose result is for another content, or that cannot be read any
        more.
    num_changed: number of all such rows.
    gone: number of keys in the ledger without a row.
    """

    changed: list[tuple[str, str]]
    num_changed: int
    gone: int


@dataclass(frozen=True)
class RowCounts:
    """Number of rows by their outcome; those that cannot be run have failed."""

    total: int
    done: int
    failed: int


class RowIndex(Closing):
    """The rows of a run in an SQLite file, so that memory does not grow with them.

    Every session makes the file from the data and the ledger, and removes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        with _storage_errors(path):
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=OFF")
            self._database.execute("PRAGMA synchronous=OFF")
            self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._database.execute(f"PRAGMA cache_size=-{_PAGE_CACHE_KIB}")
            self._database.execute(_TABLE)
        self._waiting: list[tuple[object, ...]] = []

    def close(self) -> None:
        """Removes the file."""
        self._database.close()
        self._path.unlink(missing_ok=True)

    def add(self, position: int, rank: int, item: DataRow | RowFailure) -> None:
        """Adds the row at a position of the data; rows are run in the order of their ranks."""
        content: tuple[object, ...]
        if isinstance(item, DataRow):
            # A copy: what the JSON library returns holds far more memory than it is long.
            content = (bytes(bytearray(orjson.dumps(item))), item.digest, None, None)
        else:
            content = (None, None, item.stage, item.reason)
        self._waiting.append((position, rank, item.key, item.source, item.line, *content))
        if len(self._waiting) == _ROWS_AT_ONCE:
            self._flush()

    def close_loading(self, skip: int = 0, limit: int | None = None) -> None:
        """Ends the adding of rows; keeps `limit` of them (None: all) by rank, after the first `skip`.

        Raises:
            ConfigError: several rows have the same key.
        """
        self._flush()
        self._do("CREATE INDEX by_rank ON rows (rank, position)")
        if skip or limit is not None:
            chosen = "SELECT position FROM rows ORDER BY rank, position LIMIT ? OFFSET ?"
            self._do(
                f"DELETE FROM rows WHERE position NOT IN ({chosen})", (-1 if limit is None else limit, skip)
            )
        self._do("CREATE INDEX by_key ON rows (key)")
        twice = "SELECT key FROM rows WHERE key IS NOT NULL GROUP BY key HAVING count(*) > 1"
        total = self._number(f"SELECT count(*) FROM ({twice})")
        if total:
            keys = [key for (key,) in self._rows(f"{twice} ORDER BY min(position) LIMIT {MAX_NAMED}")]
            more = [f"and {total - len(keys)} more keys stand twice"] if total > len(keys) else []
            raise ConfigError([self._repeated(key) for key in keys] + more)

    @property
    def num_rows(self) -> int:
        """Rows, the unusable ones included."""
        return self._number("SELECT count(*) FROM rows")

    def count(self, kind: EntryKind | None) -> int:
        """Returns the number of rows with a result or an error in the ledger; None counts the pending
        ones."""
        return self._number("SELECT count(*) FROM rows WHERE row IS NOT NULL AND kind IS ?", (kind,))

    def counts(self) -> RowCounts:
        return RowCounts(self.num_rows, self.count("result"), self.count("error") + self.num_unusable)

    def results_by_session(self) -> dict[int, int]:
        """Counts the rows that have a result of each session, by its number in the ledger."""
        return dict(self._rows("SELECT session, count(*) FROM rows WHERE kind = 'result' GROUP BY session"))

    @property
    def num_unusable(self) -> int:
        return self._number("SELECT count(*) FROM rows WHERE row IS NULL")

    def failures(self, limit: int) -> list[RowFailure]:
        fetched = self._rows(
            "SELECT key, source, line, stage, reason FROM rows WHERE row IS NULL ORDER BY position LIMIT ?",
            (limit,),
        )
        return [RowFailure(*fields) for fields in fetched]

    def record_outcomes(
        self, outcomes: Iterable[tuple[Entry, EntryLocation]], *, errors_too: bool = True
    ) -> RowStatus:
        """Records the outcomes in the ledger: the last one of a key counts, if the row's content is the same.

        errors_too: True counts errors as done; False runs these rows again.
        """
        self._do(
            "CREATE TEMP TABLE seen "
            "(key TEXT PRIMARY KEY, digest TEXT, kind TEXT, session, start, length) WITHOUT ROWID"
        )
        with _storage_errors(self._path):
            self._database.executemany(
                "INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (entry.key, entry.row, entry.kind, location.session, location.offset, location.length)
                    for entry, location in outcomes
                ),
            )
        if not errors_too:
            self._do("DELETE FROM seen WHERE kind = 'error'")
        self._do(
            "UPDATE rows "
            "SET kind = seen.kind, session = seen.session, start = seen.start, length = seen.length "
            "FROM seen WHERE rows.key = seen.key AND rows.digest = seen.digest"
        )
        changed = (
            "FROM rows JOIN seen USING (key) WHERE seen.kind = 'result' AND rows.digest IS NOT seen.digest"
        )
        status = RowStatus(
            self._rows(f"SELECT key, source || ':' || line {changed} ORDER BY position LIMIT {MAX_NAMED}"),
            self._number(f"SELECT count(*) {changed}"),
            self._number(
                "SELECT count(*) FROM seen WHERE key NOT IN (SELECT key FROM rows WHERE key IS NOT NULL)"
            ),
        )
        self._do("DROP TABLE seen")
        return status

    def mark(self, key: str, kind: EntryKind, location: EntryLocation) -> None:
        self._do(
            "UPDATE rows SET kind = ?, session = ?, start = ?, length = ? WHERE key = ?",
            (kind, location.session, location.offset, location.length, key),
        )

    def pending(self) -> Iterator[DataRow]:
        """Yields the rows without an outcome, in the order of running."""
        last = (-1, -1)
        while True:
            fetched = self._rows(
                "SELECT rank, position, row FROM rows WHERE (rank, position) > (?, ?) AND row IS NOT NULL "
                f"AND kind IS NULL ORDER BY rank, position LIMIT {_ROWS_AT_ONCE}",
                last,
            )
            for rank, position, row in fetched:
                last = (rank, position)
                yield DataRow.from_json(row)
            if not fetched:
                return

    def in_order(self) -> Iterator[tuple[DataRow | RowFailure, EntryLocation | None]]:
        """Yields every row in the order of the data, with the location of its outcome in the ledger, if
        any."""
        last = -1
        while fetched := self._rows(
            f"{_SELECT} WHERE position > ? ORDER BY position LIMIT {_ROWS_AT_ONCE}", (last,)
        ):
            last = fetched[-1][0]
            yield from map(_indexed, fetched)

    def _repeated(self, key: str) -> str:
        rows = self._rows("SELECT source, line FROM rows WHERE key = ? ORDER BY position LIMIT 2", (key,))
        (first, first_line), (second, second_line) = rows
        return (
            f"{second}:{second_line}: key {key!r} stands on line {first_line} of {first} already; each row "
            "needs a key of its own"
        )

    def _flush(self) -> None:
        with _storage_errors(self._path):
            self._database.execute("BEGIN")
            self._database.executemany(
                "INSERT INTO rows (position, rank, key, source, line, row, digest, stage, reason) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                self._waiting,
            )
            self._database.execute("COMMIT")
        self._waiting.clear()

    def _do(self, statement: str, values: tuple[object, ...] = ()) -> None:
        with _storage_errors(self._path):
            self._database.execute(statement, values).close()

    def _rows(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with _storage_errors(self._path), closing(self._database.execute(statement, values)) as cursor:
            return cursor.fetchall()

    def _number(self, statement: str, values: tuple[object, ...] = ()) -> int:
        return int(self._rows(statement, values)[0][0])


_SELECT = "SELECT position, key, source, line, row, stage, reason, session, start, length FROM rows"


def _indexed(columns: tuple[Any, ...]) -> tuple[DataRow | RowFailure, EntryLocation | None]:
    _, key, source, line, row, stage, reason, session, start, length = columns
    if row is None:
        return RowFailure(key, source, line, stage, reason), None
    return DataRow.from_json(row), None if session is None else EntryLocation(session, start, length)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Turns errors of SQLite, as of a full disk, into a StorageError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StorageError(f"{path}: the index of the rows cannot be written ({error})") from error
