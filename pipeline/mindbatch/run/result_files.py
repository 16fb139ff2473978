"""Making the result files of a run from its ledger, in the order of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mindbatch.dataset.rows import RowFailure
from mindbatch.io.screen_text import without_hidden
from mindbatch.io.storage import Storage
from mindbatch.ledger.ledger import Ledger
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord
from mindbatch.prompts.token_bytes import TokenBytes
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.index import IndexedRow, RowIndex
from mindbatch.run.outputs.files import Outputs, open_outputs
from mindbatch.run.outputs.rows import FinishedRow, OutputOptions, columns_of


def result_format(asked: str, is_openai: bool) -> str:
    """The format of the result file: OpenAI's for requests in its form, unless another one is asked for."""
    if asked != "auto":
        return asked
    return "openai" if is_openai else "jsonl"


def output_options(config: BatchConfig, record: RunRecord, token_bytes: TokenBytes | None) -> OutputOptions:
    """Derives the contents of the files, from the configuration and the run record alone."""
    return OutputOptions(
        prompt=config.output.prompt,
        token_ids=config.output.token_ids,
        columns=config.output.columns,
        adapter=bool(config.lora.names),
        logprobs=config.decoding.logprobs,
        fingerprint=record.fingerprint,
        created=int(datetime.fromisoformat(record.created).timestamp()),
        model=Path(config.model.checkpoint_name_or_path or "").name,
        token_bytes=token_bytes,
    )


def write_result_files(
    format: str, folder: RunFolder, options: OutputOptions, index: RowIndex, ledger: Ledger, storage: Storage
) -> RowFailure | None:
    """Writes the results and the errors of all rows, which have all been run; returns the first that failed.

    Raises:
        StorageError: a file cannot be written, or the ledger cannot be read back.
    """
    kinds = _kinds(index, options.columns) if format == "parquet" else None
    with open_outputs(format, folder, options, storage, kinds) as outputs:
        first = None
        for indexed in index.in_order():
            failed = _put(indexed, ledger, outputs)
            first = first or failed
    return first


def _kinds(index: RowIndex, names: Sequence[str]) -> dict[str, set[type]]:
    """The types of the values in columns of the data, null left out."""
    kinds: dict[str, set[type]] = {name: set() for name in names}
    rows = (indexed.row for indexed in index.in_order() if indexed.row is not None) if names else ()
    for row in rows:
        for name, value in columns_of(row).items():
            if value is not None:
                kinds[name].add(_kind(value))
    return kinds


def _kind(value: Any) -> type:
    """Type of a value; one of its own for a whole number that 64 bits hold only without a sign."""
    return object if isinstance(value, int) and abs(value) >= 1 << 63 else type(value)


def _put(indexed: IndexedRow, ledger: Ledger, outputs: Outputs) -> RowFailure | None:
    row, failure = indexed.row, indexed.failure
    if row is None:
        assert failure is not None
        failure = replace(failure, reason=without_hidden(failure.reason))
    else:
        assert indexed.place is not None, "a row that was not run"
        body = ledger.read(indexed.place).body
        if indexed.kind == "result":
            outputs.add(FinishedRow(row.key, row, body))
            return None
        failure = RowFailure(row.key, row.source, row.line, body["stage"], body["reason"])
    outputs.add_error(failure)
    return failure
