"""Results as Parquet: a row for each row of the data, its generations nested in it."""

import io
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
    groups = _Groups(file, options, kinds)
    yield groups.add
    groups.finish()


class _Groups:
    def __init__(self, file: BinaryIO, options: OutputOptions, kinds: Mapping[str, set[type]] | None) -> None:
        self._options = options
        self._types = {name: _column_type((kinds or {}).get(name, set())) for name in options.columns}
        self._schema = schema(options, self._types)
        self._writer = pq.ParquetWriter(_Sink(file), self._schema)
        self._num_groups = 0
        self._group: list[dict[str, Any]] = []
        self._num_bytes = 0

    def add(self, row: FinishedRow) -> None:
        cells = self._columns(row) | result_cells(row, self._options)
        self._group.append(cells)
        self._num_bytes += _size(cells, row.body)
        if len(self._group) >= ROWS_PER_GROUP or self._num_bytes >= BYTES_PER_GROUP:
            self._flush()

    def finish(self) -> None:
        if self._group or not self._num_groups:  # pyarrow cannot read a file without any group
            self._flush()
        self._writer.close()

    def _columns(self, row: FinishedRow) -> dict[str, Any]:
        values = columns_of(row.row)
        return {
            name: values[name] if type_ is not None or values[name] is None else json_text(values[name])
            for name, type_ in self._types.items()
        }

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._group, self._schema))
        self._num_groups += 1
        self._group.clear()
        self._num_bytes = 0


class _Sink(io.RawIOBase):
    """Passes on what pyarrow writes while the file is open.

    A writer that is dropped after an error still writes its table of contents when its memory is freed; by
    then the file is given up, and nobody wants it.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data) if self._file.closed else self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()


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
    """The row's values by column, but for the columns of the data."""
    fields = result_fields(row.body, options.token_ids)
    for cells in (fields, *fields["generations"]):
        cells |= {name: [*map(_likely_tokens, cells[name])] for name in _LOGPROBS if name in cells}
    return {
        "key": row.key,
        **({"adapter": row.row.adapter} if options.adapter else {}),
        "prompt": prompt_text(row.row) if options.prompt else None,
        **fields,
    }


def _likely_tokens(place: Mapping[Any, float] | None) -> list[dict[str, Any]] | None:
    if place is None:
        return None
    return [{"token_id": int(token), "logprob": logprob} for token, logprob in place.items()]


def _size(cells: Mapping[str, Any], body: Mapping[str, Any]) -> int:
    """About how many bytes a row takes; by its content alone, so that the groups are the same always."""
    size = len(cells["prompt"] or "") + _logprobs_size(body.get("prompt_logprobs"))
    for generation in body["generations"]:
        size += len(generation["text"]) + _BYTES_PER_TOKEN * len(generation["token_ids"])
        size += _logprobs_size(generation.get("logprobs")) + 4 * len(generation.get(EMBEDDING) or ())
    return size


def _logprobs_size(places: Sequence[Mapping[Any, float] | None] | None) -> int:
    return _BYTES_PER_TOKEN * sum(len(place or ()) for place in places or ())
