"""The rows of an output file: what it says of them, and writing them as JSON lines or CSV."""

import codecs
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, BinaryIO

import orjson

from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.engine.request import EMBEDDING, GENERATION_FIELDS, generation_fields, result_fields
from mindbatch.message_formats.parser import MessageFormat
from mindbatch.prompts.token_bytes import TokenBytes

_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class FinishedRow:
    """A row with its result.

    body: as the ledger keeps it, from `engine.request.result_body`.
    """

    row: DataRow
    body: Mapping[str, Any]


AddRow = Callable[[FinishedRow], None]
RowWriter = AbstractContextManager[AddRow]
FailureWriter = AbstractContextManager[Callable[[RowFailure], None]]
"""Writers put rows into a file in the order in which they come; what is left is written at the end."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Contents of the result files.

    prompt, token_ids: True writes the prompt, and the tokens of each generation.
    columns: columns of the data that are written with the results.
    adapter: True writes the name of the row's adapter.
    embeddings: True if rows have an embedding instead of text.
    logprobs: number of likeliest tokens of rows that do not set it.
    fingerprint: digest of the run's settings, part of identifiers.
    created: time of the run's beginning, in whole seconds since 1970.
    model: the model's name in responses to requests without one.
    token_bytes: returns the bytes that a token adds to a text; None without a tokenizer.
    message_format: the syntax of reasoning and tool calls; None leaves them as text.
    prompt_end: returns the end of a row's prompt, by which the answer may begin in reasoning.
    """

    prompt: bool = True
    token_ids: bool = False
    columns: Sequence[str] = ()
    adapter: bool = False
    embeddings: bool = False
    logprobs: int | None = None
    fingerprint: str = ""
    created: int = 0
    model: str = ""
    token_bytes: TokenBytes | None = None
    message_format: MessageFormat | None = None
    prompt_end: Callable[[DataRow], str] = lambda row: ""


def identifier(prefix: str, name: str, options: OutputOptions) -> str:
    """Returns a unique name for a kind of object, a run and a row."""
    digest = blake2b(digest_size=_ID_BYTES)
    for part in (prefix, options.fingerprint, name):
        digest.update(len(part.encode()).to_bytes(8, "little") + part.encode())
    return prefix + digest.hexdigest()


def prompt_of(row: DataRow) -> Any:
    [name] = row.content.keys() & {"text", "token_ids", "messages"}
    return row.content[name]


def columns_of(row: DataRow) -> dict[str, Any]:
    """Returns the columns of the data that go to the row's results."""
    columns: dict[str, Any] = row.extra.get("columns", {})
    return columns


def cell_text(value: Any) -> str:
    """Formats a value as a cell of a table: a text as it is, nothing for null, others as JSON."""
    return "" if value is None else value if isinstance(value, str) else json_text(value)


def prompt_text(row: DataRow) -> str:
    """Formats a prompt as a cell of a table: a text as it is, token ids and messages as JSON."""
    return cell_text(prompt_of(row))


def json_text(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


@contextmanager
def csv_table(file: BinaryIO, options: OutputOptions) -> Iterator[AddRow]:
    """Writes a line for each generation of each row; lists and mappings in a cell are JSON.

    The cells hold the data as it is. A text that begins with =, +, - or @ is a formula to a spreadsheet:
    import such a file with its columns as text, never with a double click.
    """
    text = codecs.getwriter("utf-8")(file)
    table = csv.DictWriter(text, csv_columns(options), restval="", extrasaction="ignore")
    table.writeheader()

    def add(row: FinishedRow) -> None:
        shared = {
            **{name: cell_text(value) for name, value in columns_of(row.row).items()},
            "key": row.row.key,
            **({"adapter": row.row.adapter} if options.adapter else {}),
            "prompt": prompt_text(row.row),
            "prompt_tokens": row.body["prompt_tokens"],
            "prompt_logprobs": row.body.get("prompt_logprobs"),
        }
        for generation in row.body["generations"]:
            cells = shared | generation_fields(generation, options.token_ids)
            table.writerow({name: _cell(value) for name, value in cells.items()})

    yield add


def csv_columns(options: OutputOptions) -> list[str]:
    """Returns the names of the columns. Cells are empty where a row has no log-probabilities, scores or
    drafts."""
    unwanted = {EMBEDDING: not options.embeddings, "token_ids": not options.token_ids, "logprobs": True}
    return [
        "key",
        *options.columns,
        *(["adapter"] if options.adapter else []),
        *(["prompt"] if options.prompt else []),
        *(name for name in GENERATION_FIELDS if not unwanted.get(name)),
        "prompt_tokens",
        "logprobs",  # which are long
        "prompt_logprobs",
    ]


def _cell(value: object) -> object:
    return json_text(value) if isinstance(value, list) else value


@contextmanager
def json_lines(
    file: BinaryIO, as_json: Callable[[Any], Mapping[str, Any]]
) -> Iterator[Callable[[Any], None]]:
    def add(row: FinishedRow | RowFailure) -> None:
        file.write(orjson.dumps(as_json(row), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE))

    yield add


def result_lines(file: BinaryIO, options: OutputOptions) -> RowWriter:
    """Writes results in the project's own format.

    key, the requested columns, adapter (null for none; only where there are any), prompt (unless left out)
    and `result_fields`.
    """

    def as_json(row: FinishedRow) -> Mapping[str, Any]:
        line: dict[str, Any] = {"key": row.row.key, **columns_of(row.row)}
        if options.adapter:
            line["adapter"] = row.row.adapter
        if options.prompt:
            line["prompt"] = prompt_of(row.row)
        return line | result_fields(row.body, options.token_ids)

    return json_lines(file, as_json)


def error_lines(file: BinaryIO) -> FailureWriter:
    """Writes errors in the project's own format: key, source, line, stage and reason."""
    return json_lines(file, asdict)
