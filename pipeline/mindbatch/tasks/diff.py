"""`mindbatch diff`: compares two runs row by row, in constant memory."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import groupby, product, zip_longest
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from mindbatch.config.paths import folder_error, resolved
from mindbatch.config.schema import TaskConfig, option
from mindbatch.fields import kinds as kind
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.io.regular_file import open_regular
from mindbatch.io.screen_text import printable, say, show, show_json
from mindbatch.ledger.entries import EntryKind
from mindbatch.ledger.ledger import EntryLocation, Ledger
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord, changes
from mindbatch.tasks.runs.run_state import json_mapping, state_of

NO_RUNS = "{}: must be given: mindbatch diff FIRST SECOND, the folders of two runs"
RUNS = ("first", "second")
CONTEXT = 30
"""Characters that are shown on either side of a difference."""
_CACHE_KIB = 8192
_TABLE = """
CREATE TABLE outcomes (
    key TEXT, run INTEGER, row TEXT, kind TEXT, session INTEGER, start INTEGER, length INTEGER,
    PRIMARY KEY (key, run)
) WITHOUT ROWID
"""
# Row numbers in their order, then other keys in theirs.
_ORDERED = """
SELECT * FROM outcomes ORDER BY CASE WHEN key GLOB '*[^0-9]*' THEN 100 ELSE length(key) END, key, run
"""


@dataclass
class DiffConfig(TaskConfig):
    """The keys of `mindbatch diff`."""

    positional: ClassVar[tuple[str, ...]] = RUNS

    first: str | None = option(None, "folder of a run", is_path=True)
    second: str | None = option(None, "folder of the run to compare it with", is_path=True)
    limit: int = option(20, "largest number of rows shown; all are compared and counted", kind.count())
    format: str = option("text", "text or json", kind.choice("text", "json"))
    verbose: bool = option(False, "show tracebacks")

    def resolve_paths(self) -> list[str]:
        missing = [name for name in self.positional if getattr(self, name) is None]
        errors = [NO_RUNS.format(", ".join(missing))] if missing else []
        self.first = resolved("first", self.first, folder_error, errors)
        self.second = resolved("second", self.second, folder_error, errors)
        return errors


def run(config: DiffConfig) -> int:
    """Runs the task; fails when any row differs."""
    first, second = config.first or "", config.second or ""
    comparison, notes = compare(first, second, config.limit)
    say(*notes, *_unfinished(first, second))
    if config.format == "json":
        content = dataclasses.asdict(comparison)
        lists = content.pop("lists")
        show_json({**content, **lists, "is_equal": comparison.is_equal})
    else:
        show(*_counts(comparison), *_changed(comparison), *_keys(comparison))
    return EXIT_DONE if comparison.is_equal else EXIT_FAILED


@dataclass(frozen=True)
class RowDifference:
    """The first difference of two results.

    generation: index of the sample. token: the first position with another token id; None if the ids are the
    same, and text or finish reason differ. first, second: the texts around the difference, or the finish
    reasons.
    """

    generation: int
    token: int | None
    first: str
    second: str


@dataclass(frozen=True)
class ChangedRow:
    """A row with two different results. same_row: whether prompt and parameters are the same."""

    key: str
    same_row: bool
    difference: RowDifference


@dataclass
class KeyList:
    """A number of keys, and the first of them."""

    count: int = 0
    keys: list[str] = field(default_factory=list)


@dataclass
class Comparison:
    """The differences of two runs, with the keys of the first few rows of each kind.

    settings: a line for each setting that differs. computed_with: a line for each difference of versions,
    kernels or processor that may change last bits.
    lists: the keys by kind: failed_in_first, failed_in_second, only_in_first, only_in_second.
    """

    first: str
    second: str
    settings: list[str]
    computed_with: list[str]
    equal: int = 0
    changed: int = 0
    changed_rows: list[ChangedRow] = field(default_factory=list)
    failed_in_both: int = 0
    lists: dict[str, KeyList] = field(
        default_factory=lambda: {f"{kind}_in_{run}": KeyList() for kind in ("failed", "only") for run in RUNS}
    )

    @property
    def is_equal(self) -> bool:
        return not self.changed and not any(keys.count for keys in self.lists.values())

    def list_key(self, name: str, key: str, limit: int) -> None:
        """Counts a key in one of the lists, and names it if fewer than `limit` are named."""
        listed = self.lists[name]
        listed.count += 1
        if listed.count <= limit:
            listed.keys.append(key)


class RowOutcome(NamedTuple):
    """The last outcome of a row in a run. row: digest of the row; None if it could not be read."""

    key: str
    run: int
    row: str | None
    kind: EntryKind
    session: int
    start: int
    length: int

    def body(self, ledgers: Sequence[Ledger]) -> Mapping[str, Any]:
        return ledgers[self.run].read(EntryLocation(self.session, self.start, self.length)).body


def compare(first: str, second: str, limit: int) -> tuple[Comparison, list[str]]:
    """Compares the finished rows of two runs, which may be running, without changing their folders.

    Returns the comparison, and a line for each damage. limit: how many rows of a kind are named.

    Raises:
        ConfigError: a folder holds no run, or a damaged one.
        StorageError: a folder cannot be read.
    """
    folders = [RunFolder(Path(name)) for name in (first, second)]
    records = [RunRecord.read(folder) for folder in folders]
    with ExitStack() as stack:
        # A file of its own, removed with it.
        database = stack.enter_context(closing(sqlite3.connect("", isolation_level=None)))
        database.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        database.execute(_TABLE)
        ledgers = []
        for run, (folder, record) in enumerate(zip(folders, records, strict=True)):
            ledgers.append(stack.enter_context(Ledger(folder, record.fingerprint)))
            _load(database, run, folder, ledgers[run])
        notes = [note for ledger in ledgers for note in ledger.notes]
        settings = changes(*(record.fields for record in records))
        comparison = Comparison(first, second, settings, _computed_with(database, ledgers))
        outcomes = map(RowOutcome._make, database.execute(_ORDERED))
        for key, by_run in groupby(outcomes, key=lambda outcome: outcome.key):
            _compare_row(comparison, key, [*by_run], ledgers, limit)
    return comparison, notes


def _compare_row(
    comparison: Comparison, key: str, outcomes: Sequence[RowOutcome], ledgers: Sequence[Ledger], limit: int
) -> None:
    """Adds a row to the comparison. outcomes: those in one run or in both, in the order of the runs."""
    failed = [outcome.run for outcome in outcomes if outcome.kind == "error"]
    if len(outcomes) == 1:
        comparison.list_key(f"only_in_{RUNS[outcomes[0].run]}", key, limit)
    elif len(failed) == 1:
        comparison.list_key(f"failed_in_{RUNS[failed[0]]}", key, limit)
    elif failed:
        comparison.failed_in_both += 1
    elif changed := difference(*(outcome.body(ledgers) for outcome in outcomes)):
        comparison.changed += 1
        if comparison.changed <= limit:
            same_row = outcomes[0].row == outcomes[1].row
            comparison.changed_rows.append(ChangedRow(key, same_row, changed))
    else:
        comparison.equal += 1


def _load(database: sqlite3.Connection, run: int, folder: RunFolder, ledger: Ledger) -> None:
    """Loads the rows of the ledger, and, from the file of errors, rows that could not be read."""
    entries = (
        (entry.key, run, entry.row, entry.kind, location.session, location.offset, location.length)
        for entry, location in ledger.recover()
    )
    database.execute("BEGIN")
    database.executemany("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?)", entries)
    insert = "INSERT OR IGNORE INTO outcomes (key, run, kind) VALUES (?, ?, 'error')"
    database.executemany(insert, ((key, run) for key in _failures(folder)))
    database.execute("COMMIT")


def _computed_with(database: sqlite3.Connection, ledgers: Sequence[Ledger]) -> list[str]:
    """Returns a line for each version, kernel or processor that differs between the two runs."""
    query = "SELECT DISTINCT session FROM outcomes WHERE run = ? AND kind = 'result'"
    first, second = (
        [ledger.computed_with_in(session) for (session,) in database.execute(query, (run,))]
        for run, ledger in enumerate(ledgers)
    )
    pairs = product(first, second) if any(kind not in second for kind in first) else ()
    return [*dict.fromkeys(line for pair in pairs for line in changes(*pair))]


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
        note = "" if row.same_row else " (its prompt or parameters differ, too)"
        yield f"{printable(row.key)}: differs from {where}{note}"
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


def _failures(folder: RunFolder) -> Iterator[str]:
    """Yields the rows of the file of errors, in either of its forms: by key, or by location without a key."""
    try:
        descriptor = open_regular(folder.errors)
    except OSError:  # the run has not come so far
        return
    with open(descriptor, "rb") as file:
        for content in map(json_mapping, file):
            key = content.get("key", content.get("custom_id"))
            yield key if isinstance(key, str) else _location(content)


def _location(content: Mapping[str, Any]) -> str:
    """Locates a row without a key; OpenAI's form has the location in the message, before the reason."""
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
    """Returns the texts around the first difference, or else token ids or finish reasons; None if equal."""
    texts = str(one["text"]), str(other["text"])
    position = first_difference(*texts)
    if position is not None:
        return _around(texts[0], position, ""), _around(texts[1], position, "")
    if token is not None:  # other tokens for the same text
        ids = ([*map(str, generation["token_ids"])] for generation in (one, other))
        first, second = (f"token ids {_around(part, token, ' ')}" for part in ids)
        return first, second
    if one["finish_reason"] == other["finish_reason"]:
        return None
    return f"finish_reason {one['finish_reason']}", f"finish_reason {other['finish_reason']}"


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """Finds the first index at which two sequences differ, or one ends; None if they are equal."""
    if one == other:
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _around(items: Sequence[str], position: int, joint: str) -> str:
    start, end = max(0, position - CONTEXT), position + CONTEXT
    cut = joint.join(items[start:end])
    return ("..." if start else "") + cut + ("..." if end < len(items) else "")
