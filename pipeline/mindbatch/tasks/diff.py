"""`mindbatch diff`: two runs compared row by row, with memory that does not grow with them."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, product, zip_longest
from pathlib import Path
from typing import Any, ClassVar

from mindbatch.config.paths import folder_fault, settled
from mindbatch.config.schema import TaskConfig, option
from mindbatch.fields import kinds as kind
from mindbatch.io.closing import Closing
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.io.regular_file import open_regular
from mindbatch.io.screen_text import printable, say, show, show_json
from mindbatch.ledger.ledger import ComputedWith, Ledger, Place
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord, changes
from mindbatch.run.manifest import differences
from mindbatch.tasks.runs import json_mapping, state_of

NO_RUNS = "{}: must be given: mindbatch diff FIRST SECOND, the folders of two runs"
CONTEXT = 30
"""Characters shown on either side of a difference."""
_CACHE_KIB = 8192
_BOTH = "first JOIN second USING (key)"
# Row numbers in their order, then other keys in theirs.
_ORDER = "ORDER BY CASE WHEN key GLOB '*[^0-9]*' THEN 100 ELSE length(key) END, key"
_OTHER = {"first": "second", "second": "first"}


@dataclass
class DiffConfig(TaskConfig):
    """The keys of `mindbatch diff`."""

    positional: ClassVar[tuple[str, ...]] = ("first", "second")

    first: str | None = option(None, "folder of a run", is_path=True)
    second: str | None = option(None, "folder of the run to compare it with", is_path=True)
    limit: int = option(20, "most rows shown; all are compared and counted", kind.count())
    format: str = option("text", "text or json", kind.choice("text", "json"))
    verbose: bool = option(False, "show tracebacks")

    def settle_paths(self) -> list[str]:
        missing = [name for name in self.positional if getattr(self, name) is None]
        faults = [NO_RUNS.format(", ".join(missing))] if missing else []
        self.first = settled("first", self.first, folder_fault, faults)
        self.second = settled("second", self.second, folder_fault, faults)
        return faults


def run(config: DiffConfig) -> int:
    """Runs the task; fails when any row differs."""
    first, second = config.first or "", config.second or ""
    with RunPair(RunFolder(Path(first)), RunFolder(Path(second))) as pair:
        comparison = compare(pair, first, second, config.limit)
        notes = [*pair.notes, *_unfinished(first, second)]
    say(*notes)
    if config.format == "json":
        content = dataclasses.asdict(comparison)
        lists = content.pop("lists")
        show_json({**content, **lists, "is_equal": comparison.is_equal})
    else:
        show("\n".join([*_counts(comparison), *_changed(comparison), *_keys(comparison)]))
    return EXIT_DONE if comparison.is_equal else EXIT_FAILED


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


@dataclass(frozen=True)
class ChangedRow:
    """A row with two different results. same_row: whether both were asked the same in the same way."""

    key: str
    same_row: bool
    difference: RowDifference


@dataclass
class KeyList:
    """Some keys: how many there are, and the first of them."""

    count: int
    keys: list[str]


@dataclass
class Comparison:
    """Outcome of comparing two runs; of each kind of row the first few are named.

    settings: a line for each setting that differs. computed_with: for each thing that decides last bits.
    lists: failed_in_first, failed_in_second, only_in_first, only_in_second.
    """

    first: str
    second: str
    settings: list[str]
    computed_with: list[str]
    equal: int
    changed: int
    changed_rows: list[ChangedRow]
    failed_in_both: int
    lists: dict[str, KeyList]

    @property
    def is_equal(self) -> bool:
        return not self.changed and not any(keys.count for keys in self.lists.values())


def compare(pair: RunPair, first: str, second: str, limit: int) -> Comparison:
    """Compares all rows of both runs; no more than `limit` rows of a kind are kept."""
    comparison = Comparison(
        first=first,
        second=second,
        settings=changes(*(record.fields for record in pair.records)),
        computed_with=pair.computed_with(),
        equal=0,
        changed=0,
        changed_rows=[],
        failed_in_both=pair.count_failed_in_both(),
        lists={f"failed_in_{run}": _listed(pair.keys_failed_in(run), limit) for run in _OTHER}
        | {f"only_in_{run}": _listed(pair.keys_only_in(run), limit) for run in _OTHER},
    )
    for row in pair.compared():
        if row is None:
            comparison.equal += 1
            continue
        comparison.changed += 1
        if comparison.changed <= limit:
            comparison.changed_rows.append(row)
    return comparison


def _listed(keys: Iterator[str], limit: int) -> KeyList:
    kept = list(islice(keys, limit))
    return KeyList(len(kept) + sum(1 for _ in keys), kept)


def _unfinished(*folders: str) -> Iterator[str]:
    for folder in folders:
        status = state_of(Path(folder)).status
        if status != "complete":
            yield f"{folder}: not complete ({status}); compared as far as it has come"


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
    titles = (
        f"failed in {comparison.first} only",
        f"failed in {comparison.second} only",
        f"only in {comparison.first}",
        f"only in {comparison.second}",
    )
    for title, rows in zip(titles, comparison.lists.values(), strict=True):
        if rows.count:
            more = ["..."] if rows.count > len(rows.keys) else []
            yield f"{title}: {rows.count} ({', '.join([*map(printable, rows.keys), *more])})"


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
        failed = f"SELECT count(*) FROM {_BOTH} WHERE first.kind = 'error' AND second.kind = 'error'"
        return int(self._database.execute(failed).fetchone()[0])

    def keys_only_in(self, run: str) -> Iterator[str]:
        return self._keys(f"FROM {run} WHERE key NOT IN (SELECT key FROM {_OTHER[run]})")

    def keys_failed_in(self, run: str) -> Iterator[str]:
        """The keys of rows that failed in one run and have a result in the other."""
        return self._keys(f"FROM {_BOTH} WHERE {run}.kind = 'error' AND {_OTHER[run]}.kind = 'result'")

    def computed_with(self) -> list[str]:
        """A line for each thing that the results of the two runs were computed with, where it differs."""
        first, second = (
            [*self._kinds(table, ledger)] for table, ledger in zip(_OTHER, self._ledgers, strict=True)
        )
        pairs = product(first, second) if any(kind not in second for kind in first) else ()
        return [*dict.fromkeys(line for pair in pairs for line in differences(*pair))]

    def _kinds(self, table: str, ledger: Ledger) -> Iterator[ComputedWith]:
        sessions = self._database.execute(f"SELECT DISTINCT session FROM {table} WHERE kind = 'result'")
        yield from (ledger.computed_with_in(session) for (session,) in sessions.fetchall())

    def compared(self) -> Iterator[ChangedRow | None]:
        """Every row with a result in both runs, in the order of the keys: None where these are equal."""
        cursor = self._database.execute(
            "SELECT key, first.row = second.row, first.session, first.start, first.length, "
            f"second.session, second.start, second.length FROM {_BOTH} "
            f"WHERE first.kind = 'result' AND second.kind = 'result' {_ORDER}"
        )
        one, other = self._ledgers
        for key, same_row, *places in cursor:
            bodies = one.read(Place(*places[:3])).body, other.read(Place(*places[3:])).body
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
        for content in map(json_mapping, file):
            key = content.get("key", content.get("custom_id"))
            yield key if isinstance(key, str) else _place(content)


def _place(content: Mapping[str, Any]) -> str:
    """Locates a row without a key; OpenAI's form has its place in the message, before the reason."""
    if "line" in content:
        return f"{content.get('source')}:{content['line']}"
    error = content.get("error")
    return str(error.get("message") if isinstance(error, dict) else None)


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> RowDifference | None:
    """Finds the first difference of two results in the ledger; None when the generations are the same.

    Log-probabilities are not compared: the same tokens are the same result.
    """
    pairs = zip_longest(first["generations"], second["generations"], fillvalue=None)
    for number, (one, other) in enumerate(pairs):
        if one is None or other is None:
            missing, present = "no such generation", "one generation more"
            parts = (missing, present) if one is None else (present, missing)
            return RowDifference(number, None, *parts)
        token = first_difference(one["token_ids"], other["token_ids"])
        if changed := _changed_parts(one, other, token):
            return RowDifference(number, token, *changed)
    return None


def _changed_parts(
    one: Mapping[str, Any], other: Mapping[str, Any], token: int | None
) -> tuple[str, str] | None:
    """Texts around their first difference, or else token ids or finish reasons; None if all are equal."""
    texts = str(one["text"]), str(other["text"])
    place = first_difference(*texts)
    if place is not None:
        return _around(texts[0], place, ""), _around(texts[1], place, "")
    if token is not None:  # other tokens for the same text
        ids = ([*map(str, generation["token_ids"])] for generation in (one, other))
        first, second = (f"token ids {_around(part, token, ' ')}" for part in ids)
        return first, second
    if one["finish_reason"] == other["finish_reason"]:
        return None
    return f"finish_reason {one['finish_reason']}", f"finish_reason {other['finish_reason']}"


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """The first index at which two sequences differ, be it the end of one; None when they do not."""
    if one == other:
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _around(items: Sequence[str], place: int, joint: str) -> str:
    start, end = max(0, place - CONTEXT), place + CONTEXT
    cut = joint.join(items[start:end])
    return ("..." if start else "") + cut + ("..." if end < len(items) else "")
