"""The folder of a run: taking it, and whether the run in it is the one that was asked for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.io.storage import Storage
from mindbatch.ledger.ledger import Ledger
from mindbatch.ledger.run_folder import RunFolder, RunLock
from mindbatch.ledger.run_record import RunRecord, changes, read_manifest
from mindbatch.run.index import RowIndex, Standing

WAYS_OUT = "give another output.dir, or output.on_mismatch=new_dir or overwrite"
RETRY_WAY_OUT = "rows are tried again with the settings of the run"


class RunMismatch(ConfigError):
    """The folder holds a run with other settings, or results for other rows."""


@contextmanager
def claimed(folder: RunFolder, storage: Storage) -> Iterator[None]:
    """Holds the folder for this run alone; one that was made for a run that is then refused goes again.

    Raises:
        ConfigError: another run is writing there, or the folder is not a run's.
    """
    made = [path for path in (folder.path, *folder.path.parents) if not path.exists()]
    folder.make(storage)
    with RunLock(folder, storage):
        folder.remove_leftovers(storage)
        try:
            yield
        except MindBatchError:
            if made and not folder.holds_a_run:
                _remove_empty(folder, made)
            raise


def _remove_empty(folder: RunFolder, made: list[Path]) -> None:
    folder.lock.unlink(missing_ok=True)
    for path in made:
        try:
            path.rmdir()
        except OSError:  # something is in it after all
            return


def finished_rows(folder: RunFolder) -> Callable[[str], bool]:
    """True of the key of a row that has a result in the folder, which is read when the first is asked for.

    Only for where a row cannot be read as it was: that is rare, and the keys are in memory then.
    """

    @cache
    def keys() -> frozenset[str]:
        if not folder.holds_a_run:
            return frozenset()
        ledger = Ledger(folder, RunRecord.read(folder).fingerprint)
        kinds = {outcome.key: outcome.kind for outcome in ledger.recover()}
        return frozenset(key for key, kind in kinds.items() if kind == "result")

    return lambda key: key in keys()


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
    """Only of a run that has ended it is known which rows failed.

    Raises:
        ConfigError: the run has rows that were never tried.
    """
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
