"""The rows that an output file gets, and what it should say of them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.message_formats.parser import MessageFormat
from mindbatch.prompts.token_bytes import TokenBytes

_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class FinishedRow:
    """A row with its result.

    body: as the ledger keeps it, from `engine.result_json.result_body`.
    """

    key: str
    row: DataRow
    body: Mapping[str, Any]


AddRow = Callable[[FinishedRow], None]
RowWriter = AbstractContextManager[AddRow]
FailureWriter = AbstractContextManager[Callable[[RowFailure], None]]
"""Writers put rows into a file in the order in which they come; what is left is written at the end."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Contents of the result files.

    prompt, token_ids: write the prompt, and the tokens of each generation.
    columns: of the data, written beside the results.
    adapter: write the name of the row's adapter.
    embeddings: rows have one, in place of text.
    logprobs: the number of likeliest tokens that rows ask for unless they say otherwise.
    fingerprint: names the settings of the run; identifiers are made of it.
    created: when the run was begun, in whole seconds since 1970.
    model: the name that responses carry where the request has none.
    token_bytes: what a token adds to a text; None where there is no tokenizer.
    message_format: how the model writes reasoning and tool calls; None where they stay text.
    prompt_end: the last text of a row's prompt, which decides whether the answer begins in reasoning.
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
    """A name of its own for each kind of object, run and row."""
    digest = blake2b(digest_size=_ID_BYTES)
    for part in (prefix, options.fingerprint, name):
        digest.update(len(part.encode()).to_bytes(8, "little") + part.encode())
    return prefix + digest.hexdigest()


def prompt_of(row: DataRow) -> Any:
    """The prompt as it was given: a text, token ids or messages."""
    [name] = row.content.keys() & {"text", "token_ids", "messages"}
    return row.content[name]


def columns_of(row: DataRow) -> dict[str, Any]:
    """The columns that the row brings along for the results."""
    columns: dict[str, Any] = row.extra.get("columns", {})
    return columns


def cell_text(value: Any) -> str:
    """A value of the data in one cell of a table: a text as it is, nothing for null, all else as JSON."""
    return "" if value is None else value if isinstance(value, str) else json_text(value)


def prompt_text(row: DataRow) -> str:
    """The prompt in one cell of a table: a text as it is, token ids and messages as JSON."""
    return cell_text(prompt_of(row))


def json_text(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
