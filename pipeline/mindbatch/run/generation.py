"""The loop of a run: opens its ledger, feeds rows to the model, appends results to the ledger."""

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
from mindbatch.ledger.entries import Entry, EntryKind
from mindbatch.ledger.ledger import Ledger
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord, changes, read_manifest
from mindbatch.prompts.prompts import Prompt
from mindbatch.run.index import RowIndex, RowStatus

MISMATCH_REMEDIES = "give another output.dir, or output.on_mismatch=new_dir or overwrite"
RETRY_REMEDY = "rows are tried again with the settings of the run"


class RunMismatch(ConfigError):
    """The folder holds a run with other settings, or results for other rows."""


def finished_rows(folder: RunFolder) -> Callable[[str], bool]:
    """Returns a function that is True for the key of a row with a result; its first call reads the folder.

    It is needed only if a row cannot be read any more, which is rare, as the keys are then in memory.
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
    """Opens the ledger of the run; returns it and the run's record.

    The record of an earlier session is kept, with the digests of the present data; a new one is written.

    accept: called once the run is sure to continue here, before a new record is written.
    retry: runs failed rows again. date: the date that the user requests.

    Raises:
        RunMismatch: the folder holds a run with other settings, or results of rows that have changed since.
    """
    old = RunRecord.read(folder) if folder.holds_a_run else None
    if old is not None:
        changed = changes(old.fields, record.fields)
        if date not in (None, old.date):
            changed.append(f"data.date {old.date} -> {date}")
        if changed:
            remedy = RETRY_REMEDY if retry else MISMATCH_REMEDIES
            raise RunMismatch(f"{folder.path}: was run with other settings: {', '.join(changed)}; {remedy}")
        record = replace(old, dataset=record.dataset, sources=record.sources)  # rows may have been added
    else:
        accept()
        record.write(folder, storage)
    ledger = Ledger(folder, record.fingerprint, storage)
    status = index.record_outcomes(ledger.recover(), errors_too=not retry)
    _refuse_changed(folder, status)
    if status.gone:
        ledger.notes.append(f"{folder.path}: {status.gone} rows of earlier sessions are not chosen now")
    accept()
    if old is not None and old.sources != record.sources:  # from now on these are the versions to resume with
        record.write(folder, storage)
    return ledger, record


def refuse_unfinished(folder: RunFolder) -> None:
    """Raises ConfigError for a run that has not ended, whose failed rows are not all known."""
    status = read_manifest(folder).get("status")
    if status != "complete":
        raise ConfigError(
            f"{folder.path}: the run has not ended ({status or 'not begun'}); its own command resumes it, "
            "and then failed rows can be tried again"
        )


def _refuse_changed(folder: RunFolder, status: RowStatus) -> None:
    if not status.num_changed:
        return
    named = ", ".join(f"{key} ({source})" for key, source in status.changed)
    more = status.num_changed - len(status.changed)
    also = f" and {more} more" if more else ""
    raise RunMismatch(
        f"{folder.path}: the data has changed since: other prompts or parameters for the rows {named}{also}; "
        f"{MISMATCH_REMEDIES}"
    )


class Generator(Protocol):
    """Runs rows: an `LLM`, or a stand-in for it."""

    def steps(self, rows: Iterable[tuple[Prompt, DecodingParams]]) -> Steps[StepResult, None, None]: ...

    @property
    def kernels(self) -> str: ...

    def take_notes(self) -> list[str]: ...

    @property
    def statistics(self) -> EngineStatistics: ...


@dataclass
class Tally:
    """Rows that were finished in this session.

    last_error: location and reason of the last row that failed.
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
    """Runs every pending row of the index. However it ends, the finished rows are in the ledger.

    on_step: called after every step of the engine. date: the date in chat templates; see `Prompt`.

    Raises StorageError: the ledger cannot be written; what was committed before is safe.
    """
    requested: dict[str, DataRow] = {}
    tally = Tally()
    try:
        with closing(generator.steps(_rows(index, params, requested, date))) as steps:
            before = clock()
            for step in steps:
                with interruptible():
                    for output in step.finished:
                        _record(output, requested.pop(output.key), index, ledger, tally)
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
    index: RowIndex, params: DecodingParams, requested: dict[str, DataRow], date: str | None
) -> Iterator[tuple[Prompt, DecodingParams]]:
    for row in index.pending():
        requested[row.key] = row
        yield row.prompt(date), row.params(params)


def _record(output: RequestOutput, row: DataRow, index: RowIndex, ledger: Ledger, tally: Tally) -> None:
    entry = entry_of(output, row)
    index.mark(entry.key, entry.kind, ledger.append(entry))
    if entry.kind == "result":
        tally.done += 1
    else:
        tally.failed += 1
        tally.last_error = f"{row.location}: {entry.body['reason']}"


def entry_of(output: RequestOutput, row: DataRow) -> Entry:
    return Entry(output.key, row.digest, *outcome_of(output, row.location))


def outcome_of(output: RequestOutput, source: str) -> tuple[EntryKind, dict[str, Any]]:
    """Returns kind and content of a row's result. Neither depends on when or with what it was computed."""
    if output.error is not None:
        reason = without_hidden(output.error.removeprefix(f"{source}: "))
        return "error", {"stage": output.stage, "reason": reason}
    return "result", result_body(output)
