"""The index of a dataset: every row, on disk, by its place and its key, with what has become of it."""

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
from mindbatch.ledger.entries import Entry, Kind
from mindbatch.ledger.ledger import Place

MOST_NAMED = 10
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


class Standing(NamedTuple):
    """Differences between an index and a ledger.

    changed: rows whose result is there, but for another content, or that cannot be read any more:
        (key, source), the first few.
    gone: keys in the ledger that are not among the rows.
    """

    changed: list[tuple[str, str]]
    num_changed: int
    gone: int


@dataclass(frozen=True)
class RowCounts:
    """Rows by what became of them; those that cannot be run have failed."""

    total: int
    done: int
    failed: int


class RowIndex(Closing):
    """An SQLite file that is made anew for every run and removed with it; memory does not grow with the rows.

    Nothing in it needs to survive: it can always be made again from the data and the ledger.
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
        """Takes the row that stands at a position of the data; rows are run in the order of their ranks."""
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
        """Ends the adding of rows; keeps `limit` (None: all) in the order of their ranks, after the first
        `skip` ones. Raises ConfigError: keys that stand on two rows, and where."""
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
            keys = [key for (key,) in self._rows(f"{twice} ORDER BY min(position) LIMIT {MOST_NAMED}")]
            more = [f"and {total - len(keys)} more keys stand twice"] if total > len(keys) else []
            raise ConfigError([self._repeated(key) for key in keys] + more)

    @property
    def num_rows(self) -> int:
        """Rows, the unusable ones included."""
        return self._number("SELECT count(*) FROM rows")

    def count(self, kind: Kind | None) -> int:
        """Rows with a result or an error in the ledger; None counts those that are still to be run."""
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

    def settle(self, outcomes: Iterable[tuple[Entry, Place]], *, errors_too: bool = True) -> Standing:
        """Notes what the ledger holds: the last outcome of a key counts, and only for the same content.

        errors_too: count errors as done; False has them run again.
        """
        self._do(
            "CREATE TEMP TABLE seen "
            "(key TEXT PRIMARY KEY, digest TEXT, kind TEXT, session, start, length) WITHOUT ROWID"
        )
        with _storage_errors(self._path):
            self._database.executemany(
                "INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (entry.key, entry.row, entry.kind, place.session, place.offset, place.length)
                    for entry, place in outcomes
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
        standing = Standing(
            self._rows(f"SELECT key, source || ':' || line {changed} ORDER BY position LIMIT {MOST_NAMED}"),
            self._number(f"SELECT count(*) {changed}"),
            self._number(
                "SELECT count(*) FROM seen WHERE key NOT IN (SELECT key FROM rows WHERE key IS NOT NULL)"
            ),
        )
        self._do("DROP TABLE seen")
        return standing

    def mark(self, key: str, kind: Kind, place: Place) -> None:
        self._do(
            "UPDATE rows SET kind = ?, session = ?, start = ?, length = ? WHERE key = ?",
            (kind, place.session, place.offset, place.length, key),
        )

    def pending(self) -> Iterator[DataRow]:
        """The rows without an outcome, in the order in which they are to be run."""
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

    def in_order(self) -> Iterator[tuple[DataRow | RowFailure, Place | None]]:
        """Every row in the order of the data, and where the ledger has its outcome, if there is one yet."""
        last = -1
        while fetched := self._rows(
            f"{_SELECT} WHERE position > ? ORDER BY position LIMIT {_ROWS_AT_ONCE}", (last,)
        ):
            last = fetched[-1][0]
            yield from map(_indexed, fetched)

    def _repeated(self, key: str) -> str:
        places = self._rows("SELECT source, line FROM rows WHERE key = ? ORDER BY position LIMIT 2", (key,))
        (first, first_line), (second, second_line) = places
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


def _indexed(columns: tuple[Any, ...]) -> tuple[DataRow | RowFailure, Place | None]:
    _, key, source, line, row, stage, reason, session, start, length = columns
    if row is None:
        return RowFailure(key, source, line, stage, reason), None
    return DataRow.from_json(row), None if session is None else Place(session, start, length)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """A full disk under the index is an error of storage like any other."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StorageError(f"{path}: the index of the rows cannot be written ({error})") from error
