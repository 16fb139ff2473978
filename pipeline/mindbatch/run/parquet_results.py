"""Results as Parquet: a row for each row of the data, its generations nested in it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from mindbatch.engine.request import EMBEDDING, STRATEGY_FIELDS, result_fields
from mindbatch.run.result_rows import (
    AddRow,
    FinishedRow,
    OutputOptions,
    columns_of,
    json_text,
    prompt_text,
)

ROWS_PER_GROUP = 1000
BYTES_PER_GROUP = 64 << 20  # long rows: a group is held in memory until it is written
_BYTES_PER_TOKEN = 16

_TYPES = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
_LOGPROBS = ("logprobs", "prompt_logprobs")
_LIKELY_TOKENS = pa.list_(pa.struct([("token_id", pa.int64()), ("logprob", pa.float64())]))


@contextmanager
def parquet_table(
    file: BinaryIO, options: OutputOptions, kinds: Mapping[str, set[type]] | None = None
) -> Iterator[AddRow]:
    """Writes groups of rows; a group ends with 1,000 rows, or when they are very long.

    Log-probabilities are null where a row did not ask for them; with them, each token has a list of
    {token_id, logprob} in the order in which the model likes them.

    kinds: by column of the data the types of its values; one with several is written as JSON.
    """
    types = {name: _column_type((kinds or {}).get(name, set())) for name in options.columns}
    columns = schema(options, types)
    group: list[dict[str, Any]] = []
    num_groups = num_bytes = 0

    def add(row: FinishedRow) -> None:
        nonlocal num_bytes
        cells = _carried(row, types) | result_cells(row, options)
        group.append(cells)
        num_bytes += _size(cells, row.body)
        if len(group) >= ROWS_PER_GROUP or num_bytes >= BYTES_PER_GROUP:
            write_group()

    def write_group() -> None:
        nonlocal num_groups, num_bytes
        writer.write_table(pa.Table.from_pylist(group, columns))
        group.clear()
        num_groups, num_bytes = num_groups + 1, 0

    # It is closed after an error, too: else it would be when its memory is freed, and write to a closed file.
    with pq.ParquetWriter(file, columns) as writer:
        yield add
        if group or not num_groups:  # pyarrow cannot read a file without any group
            write_group()


def _carried(row: FinishedRow, types: Mapping[str, pa.DataType | None]) -> dict[str, Any]:
    """Returns the row's columns of the data, as JSON where a column has no type of its own."""
    values = columns_of(row.row)
    return {
        name: values[name] if type_ is not None or values[name] is None else json_text(values[name])
        for name, type_ in types.items()
    }


def _column_type(kinds: set[type]) -> pa.DataType | None:
    """Chooses the type of a column of the data if its values have one type; None where it must be JSON."""
    if not kinds:
        return pa.string()
    if kinds == {int, float}:
        return pa.float64()
    return _TYPES.get(next(iter(kinds))) if len(kinds) == 1 else None


def schema(options: OutputOptions, types: Mapping[str, pa.DataType | None]) -> pa.Schema:
    generation = [
        ("index", pa.int64()),
        ("text", pa.string()),
        *([("token_ids", pa.list_(pa.int64()))] if options.token_ids else []),
        ("finish_reason", pa.string()),
        ("tokens", pa.int64()),
        ("cumulative_logprob", pa.float64()),
        ("score", pa.float64()),
        *((name, pa.int64()) for name in STRATEGY_FIELDS if name != "score"),
        *([(EMBEDDING, pa.list_(pa.float32()))] if options.embeddings else []),
        ("logprobs", pa.list_(_LIKELY_TOKENS)),
    ]
    return pa.schema(
        [
            pa.field("key", pa.string(), nullable=False),
            *(pa.field(name, type_ or pa.string()) for name, type_ in types.items()),
            *([pa.field("adapter", pa.string())] if options.adapter else []),
            *([pa.field("prompt", pa.string())] if options.prompt else []),
            pa.field("generations", pa.list_(pa.struct(generation))),
            pa.field("prompt_tokens", pa.int64()),
            pa.field("generated_tokens", pa.int64()),
            pa.field("prompt_logprobs", pa.list_(_LIKELY_TOKENS)),
        ]
    )


def result_cells(row: FinishedRow, options: OutputOptions) -> dict[str, Any]:
    """Returns the row's values by column, without the columns of the data."""
    fields = result_fields(row.body, options.token_ids)
    for cells in (fields, *fields["generations"]):
        cells |= {name: [*map(_likely_tokens, cells[name])] for name in _LOGPROBS if name in cells}
    return {
        "key": row.row.key,
        **({"adapter": row.row.adapter} if options.adapter else {}),
        "prompt": prompt_text(row.row) if options.prompt else None,
        **fields,
    }


def _likely_tokens(logprobs: Mapping[Any, float] | None) -> list[dict[str, Any]] | None:
    if logprobs is None:
        return None
    return [{"token_id": int(token), "logprob": logprob} for token, logprob in logprobs.items()]


def _size(cells: Mapping[str, Any], body: Mapping[str, Any]) -> int:
    """Estimates the bytes of a row by its content alone, so that groups are always the same."""
    size = len(cells["prompt"] or "") + _logprobs_size(body.get("prompt_logprobs"))
    for generation in body["generations"]:
        size += len(generation["text"]) + _BYTES_PER_TOKEN * len(generation["token_ids"])
        size += _logprobs_size(generation.get("logprobs")) + 4 * len(generation.get(EMBEDDING) or ())
    return size


def _logprobs_size(logprobs: Sequence[Mapping[Any, float] | None] | None) -> int:
    return _BYTES_PER_TOKEN * sum(len(by_token or ()) for by_token in logprobs or ())
