"""Opens and writes the result and error files of a run in the requested format."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, BinaryIO, cast

from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.io.screen_text import without_hidden
from mindbatch.io.storage import Storage, WholeFile
from mindbatch.ledger.ledger import EntryLocation, Ledger
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord
from mindbatch.message_formats.detection import detect
from mindbatch.message_formats.formats import FORMATS
from mindbatch.message_formats.parser import MessageFormat
from mindbatch.prompts.chat import TemplateLimit
from mindbatch.prompts.prompts import token_ids_of
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.index import RowIndex
from mindbatch.run.openai_response import refusal_lines, response_lines
from mindbatch.run.result_rows import (
    AddRow,
    FinishedRow,
    OutputOptions,
    RowWriter,
    columns_of,
    csv_table,
    error_lines,
    result_lines,
)


@contextmanager
def open_outputs(
    format: str,
    folder: RunFolder,
    options: OutputOptions,
    storage: Storage | None = None,
    kinds: Mapping[str, set[type]] | None = None,
) -> Iterator[tuple[AddRow, Callable[[RowFailure], None]]]:
    """Yields functions that add the results and the errors of a run, in the order of the files.

    format: jsonl, parquet, csv or openai; errors are JSON lines in each of them.

    kinds: the types of the values of each data column that is written, which Parquet needs.

    At the end of the `with` both files replace older ones, the errors first; an exception keeps the older
    ones. The error file is written even if it is empty, as an older one would have errors that are gone.

    Raises StorageError: a file cannot be written.
    """
    with (
        WholeFile(folder.results(format), storage) as result_file,
        WholeFile(folder.errors, storage) as error_file,
    ):
        results = _result_writer(format, cast(BinaryIO, result_file), options, kinds)
        errors = cast(BinaryIO, error_file)
        refused = refusal_lines(errors, options) if format == "openai" else error_lines(errors)
        with results as add, refused as add_error:
            yield add, add_error


def _result_writer(
    format: str, file: BinaryIO, options: OutputOptions, kinds: Mapping[str, set[type]] | None
) -> RowWriter:
    if format == "parquet":
        from mindbatch.run.parquet_results import parquet_table  # pyarrow takes long to import

        return parquet_table(file, options, kinds)
    return {"jsonl": result_lines, "csv": csv_table, "openai": response_lines}[format](file, options)


def result_format(name: str, is_openai: bool) -> str:
    """Returns the format of the result file; "auto" is OpenAI's for requests in its form, else JSON lines."""
    if name != "auto":
        return name
    return "openai" if is_openai else "jsonl"


def message_format(name: str, tokenizer: Tokenizer | None) -> MessageFormat | None:
    """Returns the format of a name; auto is the chat template's, none is None."""
    format = FORMATS.get(name) if name != "auto" or tokenizer is None else _format_of(tokenizer)
    if format is None or tokenizer is None:
        return format
    special = tokenizer.special_tokens
    return format.with_special_tokens(
        special.values(), [special[i] for i in tokenizer.eos_token_ids if i in special]
    )


def _format_of(tokenizer: Tokenizer) -> MessageFormat | None:
    template = tokenizer.tool_template
    if template is None:
        return None
    try:
        return detect(template, tokenizer.try_chat)
    except TemplateLimit:  # an error of rows that need as much
        return detect(template)


def calls_stay_text(section: str, name: str) -> list[str]:
    """Returns a line for tools that are offered to a model of unknown format; none if the user set a format.

    section: the section of the configuration with message_format. name: the value of that.
    """
    if name != "auto":
        return []
    key = f"{section}.message_format"
    return [
        "tools are offered, but the chat template writes calls in no format that is known: they stay text; "
        f"{key}=NAME reads those of a format, {key}=none leaves them without this line"
    ]


def output_options(
    config: BatchConfig, record: RunRecord, tokenizer: Tokenizer | None, format: MessageFormat | None
) -> OutputOptions:
    """Derives the contents of the files, from the configuration and the run record alone.

    tokenizer: of a model whose results name tokens by their text, or have messages in a format.
    """

    def end(row: DataRow) -> str:
        if tokenizer is None:
            return ""
        return tokenizer.end_of(token_ids_of(row.prompt(record.date), tokenizer))

    return OutputOptions(
        prompt=config.output.prompt,
        token_ids=config.output.token_ids,
        columns=config.output.columns,
        adapter=bool(config.lora.names),
        embeddings=config.decoding.pooling is not None,
        logprobs=config.decoding.logprobs,
        fingerprint=record.fingerprint,
        created=int(datetime.fromisoformat(record.created).timestamp()),
        model=config.model_name,
        token_bytes=None if tokenizer is None else tokenizer.token_bytes,
        message_format=format,
        prompt_end=end,
    )


def write_result_files(
    format: str, folder: RunFolder, options: OutputOptions, index: RowIndex, ledger: Ledger, storage: Storage
) -> RowFailure | None:
    """Writes the results and the errors of all rows, which have all been run; returns the first that failed.
    Raises StorageError: a file cannot be written, or the ledger cannot be read back."""
    kinds = _kinds(index, options.columns) if format == "parquet" else None
    with open_outputs(format, folder, options, storage, kinds) as (add, add_error):
        first = None
        for item, location in index.in_order():
            outcome = _outcome(item, location, ledger)
            if isinstance(outcome, FinishedRow):
                add(outcome)
            else:
                add_error(outcome)
                first = first or outcome
    return first


def _kinds(index: RowIndex, names: Sequence[str]) -> dict[str, set[type]]:
    """Returns the types of the values in columns of the data, without null."""
    kinds: dict[str, set[type]] = {name: set() for name in names}
    rows = (item for item, _ in index.in_order() if isinstance(item, DataRow)) if names else ()
    for row in rows:
        for name, value in columns_of(row).items():
            if value is not None:
                kinds[name].add(_kind(value))
    return kinds


def _kind(value: Any) -> type:
    """Returns the type of a value; one of its own for a whole number that 64 bits hold only without a
    sign."""
    return object if isinstance(value, int) and abs(value) >= 1 << 63 else type(value)


def _outcome(
    item: DataRow | RowFailure, location: EntryLocation | None, ledger: Ledger
) -> FinishedRow | RowFailure:
    if isinstance(item, RowFailure):
        return replace(item, reason=without_hidden(item.reason))
    assert location is not None, "a row that was not run"
    entry = ledger.read(location)
    if entry.kind == "result":
        return FinishedRow(item, entry.body)
    return RowFailure(item.key, item.source, item.line, entry.body["stage"], entry.body["reason"])
