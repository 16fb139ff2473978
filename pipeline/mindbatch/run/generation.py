"""The loop at the heart of a run: its ledger is opened, rows go into the model, results into the ledger."""

import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Generator as Steps
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

from mindbatch.dataset.rows import DataRow
from mindbatch.decoding import DecodingParams
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import RequestOutput, result_body
from mindbatch.engine.statistics import EngineStatistics
from mindbatch.io.errors import ConfigError
from mindbatch.io.interrupts import interruptible
from mindbatch.io.screen_text import without_hidden
from mindbatch.io.storage import Storage, StorageError
from mindbatch.ledger.entries import Entry, Kind
from mindbatch.ledger.ledger import Ledger
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord, changes, read_manifest
from mindbatch.prompts.prompts import Prompt
from mindbatch.run.index import RowIndex, Standing

WAYS_OUT = "give another output.dir, or output.on_mismatch=new_dir or overwrite"
RETRY_WAY_OUT = "rows are tried again with the settings of the run"


class RunMismatch(ConfigError):
    """The folder holds a run with other settings, or results for other rows."""


def finished_rows(folder: RunFolder) -> Callable[[str], bool]:
    """True of the key of a row that has a result in the folder, which is read when the first is asked for.

    Only for where a row cannot be read as it was: that is rare, and the keys are in memory then.
    """

    @cache
    def keys() -> frozenset[str]:
        if not folder.holds_a_run:
            return frozenset()
        ledger = Ledger(folder, RunRecord.read(folder).fingerprint)
        kinds = {entry.key: entry.kind for entry, _ in ledger.recover()}
        return frozenset(key for key, kind in kinds.items() if kind == "result")

    return lambda key: key in keys()


def has_results(folder: RunFolder) -> bool:
    """True if some row of the run in the folder has a result, or may have one that cannot be read."""
    ledger = Ledger(folder, RunRecord.read(folder).fingerprint)
    try:
        return any(entry.kind == "result" for entry, _ in ledger.recover()) or bool(ledger.notes)
    except ConfigError:  # of another format
        return True


def open_ledger(
    folder: RunFolder,
    record: RunRecord,
    index: RowIndex,
    storage: Storage,
    accept: Callable[[], None],
    *,
    retry: bool,
    date: str | None = None,
) -> tuple[Ledger, RunRecord]:
    """The ledger of the run, to be closed, and its record: if it is the same run the old one, with the data
    of today, else the new one, written.

    accept: called once it is sure that the run goes on here, and before a new one's record is written.
    retry: rows that failed are to run again. date: the one that was asked for.

    Raises:
        RunMismatch: the folder holds a run with other settings, or results of rows that have changed since.
    """
    if folder.holds_a_run:
        old = RunRecord.read(folder)
        changed = changes(old.fields, record.fields)
        if date not in (None, old.date):
            changed.append(f"data.date {old.date} -> {date}")
        if changed:
            way_out = RETRY_WAY_OUT if retry else WAYS_OUT
            raise RunMismatch(f"{folder.path}: was run with other settings: {', '.join(changed)}; {way_out}")
        record = replace(old, dataset=record.dataset)  # rows may have been added
    else:
        accept()
        record.write(folder, storage)
    ledger = Ledger(folder, record.fingerprint, storage)
    standing = index.settle(ledger.recover(), errors_too=not retry)
    _refuse_changed(folder, standing)
    if standing.gone:
        ledger.notes.append(f"{folder.path}: {standing.gone} rows of earlier sessions are not chosen now")
    accept()
    return ledger, record


def refuse_unfinished(folder: RunFolder) -> None:
    """Only of a run that has ended it is known which rows failed. Raises ConfigError: the run has rows that
    were never tried."""
    status = read_manifest(folder).get("status")
    if status != "complete":
        raise ConfigError(
            f"{folder.path}: the run has not ended ({status or 'not begun'}); its own command resumes it, "
            "and then failed rows can be tried again"
        )


def _refuse_changed(folder: RunFolder, standing: Standing) -> None:
    if not standing.num_changed:
        return
    named = ", ".join(f"{key} ({source})" for key, source in standing.changed)
    more = standing.num_changed - len(standing.changed)
    also = f" and {more} more" if more else ""
    raise RunMismatch(
        f"{folder.path}: the data has changed since: other prompts or parameters for the rows {named}{also}; "
        f"{WAYS_OUT}"
    )


class Generator(Protocol):
    """Runner of rows: an `LLM`, or a stand-in for it. statistics: since it was made."""

    def steps(self, rows: Iterable[tuple[Prompt, DecodingParams]]) -> Steps[StepResult, None, None]: ...

    @property
    def kernels(self) -> str: ...

    def take_notes(self) -> list[str]: ...

    @property
    def statistics(self) -> EngineStatistics: ...


@dataclass
class Tally:
    """Rows that were finished in this session.

    last_error: the place and the reason of the last one that failed.
    """

    done: int = 0
    failed: int = 0
    last_error: str = ""


def generate(
    generator: Generator,
    index: RowIndex,
    ledger: Ledger,
    params: DecodingParams,
    on_step: Callable[[Tally], None],
    date: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Runs every pending row of the index. However it ends, what was finished until then is in the ledger.

    on_step: called after every step of the engine. date: what chat templates are told; see `Prompt`.

    Raises StorageError: the ledger cannot be written; what was committed before is safe.
    """
    asked: dict[str, DataRow] = {}
    tally = Tally()
    try:
        with closing(generator.steps(_rows(index, params, asked, date))) as steps:
            before = clock()
            for step in steps:
                with interruptible():
                    for output in step.finished:
                        _record(output, asked.pop(output.key), index, ledger, tally)
                    ledger.commit_if_due(clock() - before)
                before = clock()
                on_step(tally)
    except StorageError:
        raise
    except BaseException:
        _commit(ledger)
        raise
    _commit(ledger)


def _commit(ledger: Ledger) -> None:
    with interruptible():  # a second Ctrl-C waits until the rows are safe
        ledger.commit()


def _rows(
    index: RowIndex, params: DecodingParams, asked: dict[str, DataRow], date: str | None
) -> Iterator[tuple[Prompt, DecodingParams]]:
    for row in index.pending():
        asked[row.key] = row
        yield row.prompt(date), row.params(params)


def _record(output: RequestOutput, row: DataRow, index: RowIndex, ledger: Ledger, tally: Tally) -> None:
    entry = entry_of(output, row)
    index.mark(entry.key, entry.kind, ledger.append(entry))
    if entry.kind == "result":
        tally.done += 1
    else:
        tally.failed += 1
        tally.last_error = f"{row.place}: {entry.body['reason']}"


def entry_of(output: RequestOutput, row: DataRow) -> Entry:
    return Entry(output.key, row.digest, *outcome_of(output, row.place))


def outcome_of(output: RequestOutput, source: str) -> tuple[Kind, dict[str, Any]]:
    """Returns kind and content of a row's result. Neither depends on when or with what it was computed."""
    if output.error is not None:
        reason = without_hidden(output.error.removeprefix(f"{source}: "))
        return "error", {"stage": output.stage, "reason": reason}
    return "result", result_body(output)
