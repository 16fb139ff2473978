"""`mindbatch diff`: two runs compared row by row."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, product, zip_longest
from pathlib import Path
from typing import Any, ClassVar

import orjson

from mindbatch.config.path_faults import folder_fault, settled
from mindbatch.config.schema import TaskConfig, option
from mindbatch.io.closing import Closing
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.io.regular_file import open_regular
from mindbatch.io.screen_text import printable, say, show, show_json
from mindbatch.ledger.ledger import ComputedWith, Ledger, Place
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord, changes
from mindbatch.run.manifest import differences
from mindbatch.tasks.runs import state_of

_CACHE_KIB = 8192
_BOTH = "first JOIN second USING (key)"
# Row numbers in their order, then other keys in theirs.
_ORDER = "ORDER BY CASE WHEN key GLOB '*[^0-9]*' THEN 100 ELSE length(key) END, key"
CONTEXT = 30
"""Characters shown on either side of a difference."""
_END = object()


@dataclass(frozen=True)
class ChangedRow:
    """A row with two different results. same_row: whether both were asked the same in the same way."""

    key: str
    same_row: bool
    difference: RowDifference


class RunPair(Closing):
    """Two runs, read as far as they have come; nothing in their folders is changed.

    records: of both runs. notes: what was found damaged, a line each.

    Raises:
        ConfigError: a folder holds no run, or a damaged one.
        StorageError: a folder cannot be read.
    """

    def __init__(self, first: RunFolder, second: RunFolder) -> None:
        self.records = RunRecord.read(first), RunRecord.read(second)
        self.notes: list[str] = []
        self._open = ExitStack()
        self._database = sqlite3.connect("", isolation_level=None)  # a file of its own, removed with it
        self._open.callback(self._database.close)
        try:
            self._database.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            self._ledgers = self._load("first", first, 0), self._load("second", second, 1)
        except BaseException:
            self._open.close()
            raise

    def close(self) -> None:
        self._open.close()

    def count_failed_in_both(self) -> int:
        """Rows without a result in either run."""
        where = f"FROM {_BOTH} WHERE first.kind = 'error' AND second.kind = 'error'"
        return int(self._database.execute(f"SELECT count(*) {where}").fetchone()[0])

    def keys_only_in(self, run: str) -> Iterator[str]:
        """The keys that only `first`, or only `second`, has."""
        other = "second" if run == "first" else "first"
        return self._keys(f"FROM {run} WHERE key NOT IN (SELECT key FROM {other})")

    def keys_failed_in(self, run: str) -> Iterator[str]:
        """The keys of rows that failed in one run and have a result in the other."""
        other = "second" if run == "first" else "first"
        return self._keys(f"FROM {_BOTH} WHERE {run}.kind = 'error' AND {other}.kind = 'result'")

    def computed_with(self) -> list[str]:
        """A line for each thing that the results of the two runs were computed with, where it differs."""
        first, second = (
            [*self._kinds(table, ledger)]
            for table, ledger in zip(("first", "second"), self._ledgers, strict=True)
        )
        pairs = product(first, second) if any(kind not in second for kind in first) else ()
        return [*dict.fromkeys(line for pair in pairs for line in differences(*pair))]

    def _kinds(self, table: str, ledger: Ledger) -> Iterator[ComputedWith]:
        """Yields what the results of a run were computed with."""
        sessions = self._database.execute(f"SELECT DISTINCT session FROM {table} WHERE kind = 'result'")
        yield from (ledger.computed_with_in(session) for (session,) in sessions.fetchall())

    def compared(self) -> Iterator[ChangedRow | None]:
        """Every row with a result in both runs, in the order of the keys: None where these are equal."""
        cursor = self._database.execute(
            "SELECT key, first.row = second.row, first.session, first.start, first.length, "
            f"second.session, second.start, second.length FROM {_BOTH} "
            f"WHERE first.kind = 'result' AND second.kind = 'result' {_ORDER}"
        )
        for key, same_row, *places in cursor:
            bodies = (
                ledger.read(Place(*place)).body
                for ledger, place in zip(self._ledgers, (places[:3], places[3:]), strict=True)
            )
            changed = difference(*bodies)
            yield ChangedRow(key, bool(same_row), changed) if changed else None

    def _keys(self, where: str) -> Iterator[str]:
        return (key for (key,) in self._database.execute(f"SELECT key {where} {_ORDER}"))

    def _load(self, table: str, folder: RunFolder, number: int) -> Ledger:
        """Takes what the ledger holds, and the rows that could not even be read from the file of errors."""
        columns = "key TEXT PRIMARY KEY, row TEXT, kind TEXT, session INTEGER, start INTEGER, length INTEGER"
        self._database.execute(f"CREATE TABLE {table} ({columns}) WITHOUT ROWID")
        ledger = self._open.enter_context(Ledger(folder, self.records[number].fingerprint))
        entries = (
            (entry.key, entry.row, entry.kind, place.session, place.offset, place.length)
            for entry, place in ledger.recover()
        )
        self._database.execute("BEGIN")
        self._database.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?, ?, ?)", entries)
        insert = f"INSERT OR IGNORE INTO {table} (key, kind) VALUES (?, 'error')"
        self._database.executemany(insert, ((name,) for name in _failures(folder)))
        self._database.execute("COMMIT")
        self.notes += ledger.notes
        return ledger


def _failures(folder: RunFolder) -> Iterator[str]:
    """The rows in the file of errors, in either of its forms: keys, or places of rows that have none."""
    try:
        descriptor = open_regular(folder.errors)
    except OSError:  # the run has not come so far
        return
    with open(descriptor, "rb") as file:
        for line in file:
            content = _mapping(_json(line))
            key = content.get("key", content.get("custom_id"))
            yield key if isinstance(key, str) else _place(content)


def _place(content: Mapping[str, Any]) -> str:
    """Locates a row without a key; OpenAI's form has its place in the message, before the reason."""
    if "line" in content:
        return f"{content.get('source')}:{content['line']}"
    return str(_mapping(content.get("error")).get("message"))


def _json(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class RowDifference:
    """The first difference of two results.

    generation: which sample differs. token: the first position at which its token ids do; None where they are
    the same, and only text or finish reason differ. first, second: the texts around the difference, or what
    else differs, in words.
    """

    generation: int
    token: int | None
    first: str
    second: str


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> RowDifference | None:
    """Finds the first difference of two results in the ledger; None when the generations are the same.

    Log-probabilities are not compared: the same tokens are the same result.
    """
    pairs = zip_longest(first["generations"], second["generations"], fillvalue=None)
    for number, (one, other) in enumerate(pairs):
        if one is None or other is None:
            return RowDifference(number, None, _presence(one), _presence(other))
        changed = _between(number, one, other)
        if changed:
            return changed
    return None


def _between(number: int, one: Mapping[str, Any], other: Mapping[str, Any]) -> RowDifference | None:
    token = first_difference(one["token_ids"], other["token_ids"])
    if token is None and one["text"] == other["text"]:
        if one["finish_reason"] == other["finish_reason"]:
            return None
        return RowDifference(
            number, None, f"finish_reason {one['finish_reason']}", f"finish_reason {other['finish_reason']}"
        )
    texts = str(one["text"]), str(other["text"])
    place = first_difference(*texts)
    if place is None:  # other tokens for the same text
        ids = ([*map(str, generation["token_ids"])] for generation in (one, other))
        return RowDifference(number, token, *(f"token ids {_around(part, token or 0, ' ')}" for part in ids))
    return RowDifference(number, token, *(_around(text, place, "") for text in texts))


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """The first index at which two sequences differ, be it the end of one; None when they do not."""
    if one == other:
        return None
    pairs = zip_longest(one, other, fillvalue=_END)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), None)


def _around(items: Sequence[str], place: int, joint: str) -> str:
    start, end = max(0, place - CONTEXT), place + CONTEXT
    cut = joint.join(items[start:end])
    return ("..." if start else "") + cut + ("..." if end < len(items) else "")


def _presence(generation: object) -> str:
    return "no such generation" if generation is None else "one generation more"


NO_RUNS = "{}: must be given: mindbatch diff FIRST SECOND, the folders of two runs"


@dataclasses.dataclass
class DiffConfig(TaskConfig):
    """The keys of `mindbatch diff`."""

    positional: ClassVar[tuple[str, ...]] = ("first", "second")

    first: str | None = option(None, "folder of a run", is_path=True)
    second: str | None = option(None, "folder of the run to compare it with", is_path=True)
    limit: int = option(20, "most rows shown; all are compared and counted", minimum=0)
    format: str = option("text", "text or json", choices=("text", "json"))
    verbose: bool = option(False, "show tracebacks")

    def settle_paths(self) -> list[str]:
        missing = [name for name in self.positional if getattr(self, name) is None]
        faults = [NO_RUNS.format(", ".join(missing))] if missing else []
        self.first = settled("first", self.first, folder_fault, faults)
        self.second = settled("second", self.second, folder_fault, faults)
        return faults


@dataclasses.dataclass
class KeyList:
    """Some keys: how many there are, and the first of them."""

    count: int
    keys: list[str]


@dataclasses.dataclass
class Comparison:
    """Outcome of comparing two runs; of each kind of row the first few are named.

    settings: a line for each setting that differs. computed_with: for each thing that decides last bits.
    """

    first: str
    second: str
    settings: list[str]
    computed_with: list[str]
    equal: int
    changed: int
    changed_rows: list[ChangedRow]
    failed_in_both: int
    failed_in_first: KeyList
    failed_in_second: KeyList
    only_in_first: KeyList
    only_in_second: KeyList

    @property
    def is_equal(self) -> bool:
        """True if every row came out the same."""
        lists = (self.failed_in_first, self.failed_in_second, self.only_in_first, self.only_in_second)
        return not self.changed and not any(keys.count for keys in lists)


def run(config: DiffConfig) -> int:
    """Runs the task; fails when any row differs."""
    assert config.first is not None
    assert config.second is not None
    with RunPair(RunFolder(Path(config.first)), RunFolder(Path(config.second))) as pair:
        comparison = compare(pair, config.first, config.second, config.limit)
        notes = [*pair.notes, *_unfinished(config.first, config.second)]
    say(*notes)
    if config.format == "json":
        show_json(as_json(comparison))
    else:
        show(as_text(comparison))
    return EXIT_DONE if comparison.is_equal else EXIT_FAILED


def compare(pair: RunPair, first: str, second: str, limit: int) -> Comparison:
    """Compares all rows of both runs; no more than `limit` rows of a kind are kept."""
    equal, changed, rows = 0, 0, list[ChangedRow]()
    for row in pair.compared():
        if row is None:
            equal += 1
            continue
        changed += 1
        if changed <= limit:
            rows.append(row)
    return Comparison(
        first=first,
        second=second,
        settings=changes(*(record.fields for record in pair.records)),
        computed_with=pair.computed_with(),
        equal=equal,
        changed=changed,
        changed_rows=rows,
        failed_in_both=pair.count_failed_in_both(),
        failed_in_first=_listed(pair.keys_failed_in("first"), limit),
        failed_in_second=_listed(pair.keys_failed_in("second"), limit),
        only_in_first=_listed(pair.keys_only_in("first"), limit),
        only_in_second=_listed(pair.keys_only_in("second"), limit),
    )


def _listed(keys: Iterator[str], limit: int) -> KeyList:
    kept = list(islice(keys, limit))
    return KeyList(len(kept) + sum(1 for _ in keys), kept)


def _unfinished(*folders: str) -> Iterator[str]:
    for folder in folders:
        status = state_of(Path(folder)).status
        if status != "complete":
            yield f"{folder}: not complete ({status}); compared as far as it has come"


def as_json(comparison: Comparison) -> dict[str, Any]:
    return {**dataclasses.asdict(comparison), "is_equal": comparison.is_equal}


def as_text(comparison: Comparison) -> str:
    """The comparison as a page: the counts, then the rows that differ."""
    return "\n".join([*_counts(comparison), *_changed(comparison), *_keys(comparison)])


def _counts(comparison: Comparison) -> Iterator[str]:
    verdict = "all rows are equal" if comparison.is_equal else "they differ"
    yield f"{comparison.first} and {comparison.second}: {verdict}"
    if comparison.settings:
        yield f"other settings: {', '.join(map(printable, comparison.settings))}"
    if comparison.computed_with:
        yield f"computed with: {', '.join(map(printable, comparison.computed_with))}"
    yield f"  equal           {comparison.equal}"
    yield f"  changed         {comparison.changed}"
    if comparison.failed_in_both:
        yield f"  failed in both  {comparison.failed_in_both}"


def _changed(comparison: Comparison) -> Iterator[str]:
    for row in comparison.changed_rows:
        where = f"generation {row.difference.generation}"
        if row.difference.token is not None:
            where += f", token {row.difference.token}"
        asked = "" if row.same_row else " (its prompt or parameters differ, too)"
        yield f"{printable(row.key)}: differs from {where}{asked}"
        yield f"  {comparison.first}: {printable(row.difference.first)}"
        yield f"  {comparison.second}: {printable(row.difference.second)}"
    if (more := comparison.changed - len(comparison.changed_rows)) > 0:
        yield f"{more} more changed rows; limit=N shows more of them"


def _keys(comparison: Comparison) -> Iterator[str]:
    for title, rows in (
        (f"failed in {comparison.first} only", comparison.failed_in_first),
        (f"failed in {comparison.second} only", comparison.failed_in_second),
        (f"only in {comparison.first}", comparison.only_in_first),
        (f"only in {comparison.second}", comparison.only_in_second),
    ):
        if rows.count:
            more = ["..."] if rows.count > len(rows.keys) else []
            yield f"{title}: {rows.count} ({', '.join([*map(printable, rows.keys), *more])})"
