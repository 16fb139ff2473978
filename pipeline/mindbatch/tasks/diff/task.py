"""`mindbatch diff`: two runs compared row by row."""

import dataclasses
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from mindbatch.config.path_faults import folder_fault, settled
from mindbatch.config.schema import TaskConfig, option
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.io.screen_text import printable, say, show, show_json
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import changes
from mindbatch.tasks.diff.run_pair import ChangedRow, RunPair
from mindbatch.tasks.runs import state_of

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
