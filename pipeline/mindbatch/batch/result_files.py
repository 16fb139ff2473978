"""Making the result files of a run from its ledger, in the order of the data."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from mindbatch.batch.index import IndexedRow, RowIndex
from mindbatch.batch.outputs.files import Outputs, open_outputs
from mindbatch.batch.outputs.rows import FailedRow, FinishedRow, OutputOptions
from mindbatch.config.schema import BatchConfig
from mindbatch.data.token_bytes import TokenBytes
from mindbatch.ledger.ledger import Ledger
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord
from mindbatch.storage import Storage


def result_format(asked: str, is_openai: bool) -> str:
    """The format of the result file: OpenAI's for requests in its form, unless another one is asked for."""
    if asked != "auto":
        return asked
    return "openai" if is_openai else "jsonl"


def output_options(config: BatchConfig, record: RunRecord, token_bytes: TokenBytes | None) -> OutputOptions:
    """What the files hold; all of it follows from the configuration and the run record."""
    return OutputOptions(
        prompt=config.output.prompt,
        token_ids=config.output.token_ids,
        logprobs=config.decoding.logprobs,
        fingerprint=record.fingerprint,
        created=int(datetime.fromisoformat(record.created).timestamp()),
        model=Path(config.model.checkpoint_name_or_path or "").name,
        token_bytes=token_bytes,
    )


def write_result_files(
    format: str, folder: RunFolder, options: OutputOptions, index: RowIndex, ledger: Ledger, storage: Storage
) -> None:
    """Writes the results and the errors of all rows, which have all been run.

    Raises:
        StorageError: a file cannot be written, or the ledger cannot be read back.
    """
    with open_outputs(format, folder, options, storage) as outputs:
        for indexed in index.in_order():
            _put(indexed, ledger, outputs)


def _put(indexed: IndexedRow, ledger: Ledger, outputs: Outputs) -> None:
    row, failure = indexed.row, indexed.failure
    if row is None:
        assert failure is not None
        outputs.add_error(FailedRow(failure.key, failure.source, failure.line, failure.stage, failure.reason))
        return
    assert indexed.place is not None, "a row that was not run"
    body = ledger.read(indexed.place).body
    if indexed.kind == "result":
        outputs.add(FinishedRow(row.key, row, body))
    else:
        outputs.add_error(FailedRow(row.key, row.source, row.line, body["stage"], body["reason"]))
