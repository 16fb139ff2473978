"""One row of a run: as the data asks for it, and what the ledger says came of it."""

from contextlib import closing
from dataclasses import dataclass

from mindbatch.dataset.rows import DataRow, RowFailure, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.io.errors import ConfigError, PromptError
from mindbatch.io.storage import Storage
from mindbatch.ledger.entries import Entry
from mindbatch.ledger.ledger import ComputedWith, Ledger
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.input import DataInput


@dataclass(frozen=True)
class StoredRow:
    """A row of a run, its outcome, the run it belongs to, and what it was computed with."""

    row: DataRow
    entry: Entry
    record: RunRecord
    computed_with: ComputedWith


def stored_row(config: BatchConfig, folder: RunFolder, key: str) -> StoredRow:
    """The row of that key.

    Raises:
        ConfigError: the folder holds no run, no row has the key, or it was not run yet.
        PromptError: the row cannot be run as it was read.
    """
    record = RunRecord.read(folder)
    outcome = _entry(folder, record, key)
    row = _row(config, folder, key)
    if isinstance(row, RowFailure):
        raise PromptError(f"{row.place}: {row.reason}")
    if outcome is None:
        raise ConfigError(f"key={key}: not run yet in {folder.path}; the command of the run resumes it")
    entry, kind = outcome
    return StoredRow(row, entry, record, kind)


def _entry(folder: RunFolder, record: RunRecord, key: str) -> tuple[Entry, ComputedWith] | None:
    """Reads the last entry of a row in the ledger, and with what it was computed."""
    with Ledger(folder, record.fingerprint) as ledger:
        places = [entry.place for entry in ledger.recover() if entry.key == key]
        if not places:
            return None
        return ledger.read(places[-1]), ledger.computed_with_in(places[-1].session)


def _row(config: BatchConfig, folder: RunFolder, key: str) -> DataRow | RowFailure:
    dataset = DataInput(config.data, Storage(), kept=True).dataset(folder)
    params = DecodingParams(**vars(config.decoding))
    maker = RowMaker(config.data, params, dataset.is_openai, lora=config.lora)
    with closing(maker):
        for position, record in enumerate(dataset.records()):
            row = maker.make(position, record)
            if row.key == key:
                return row
    raise ConfigError(f"key={key}: no row of {config.data.path} has this key")
