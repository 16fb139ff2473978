"""The child process that reads Parquet files with Arrow, which some files kill; started by `parquet_table`.

A request is {"path": str} alone, answered by {"names": [...], "depth": int, "group_rows": [...]}, or with
"group" and "row", numbers from 0, answered by the rows from that one on, none at the end of the row group.
Each is a pair of its columns and of what of them is unusable, by reason; null if it is too long. Either may
get {"damage": str}, or {"disk": str} where the system says that the disk fails.
"""

from __future__ import annotations

import datetime
import math
import os
import uuid
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from multiprocessing.connection import Connection
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import orjson

from mindbatch.dataset.parquet_pages import batch_rows, dictionary_columns, group_pages
from mindbatch.io.child_main import serve

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

ANSWER_BYTES = 4 << 20
"""Size of the rows at which an answer ends."""
_MAX_ROWS = 1024
_BATCH_BYTES = 8 << 20
"""Bytes of the rows that Arrow unpacks at a time, by what the headers of pages say."""
_PORTION_BYTES = 4 << 20
"""Bytes of those rows that become values at a time."""
_BYTES_PER_JSON_BYTE = 10  # a decimal of 32 bytes may be "0" and a comma
_READ_BYTES = 1 << 18
_TOO_LONG = b"null"


def main(connection: Connection, seconds: str, memory_bytes: str, max_row_bytes: str) -> None:
    """Runs the process until its connection closes; see `child_main.serve` for the limits."""
    import pyarrow

    pyarrow.set_memory_pool(pyarrow.system_memory_pool())  # the others reserve addresses by the gigabyte
    answer = partial(answer_to, reader=ParquetReader(int(max_row_bytes)), memory_bytes=int(memory_bytes))
    serve(connection, answer, float(seconds), int(memory_bytes))


def answer_to(request: dict[str, Any], reader: ParquetReader, memory_bytes: int) -> bytes | dict[str, Any]:
    try:
        return reader.rows(**request) if "group" in request else reader.opened(**request)
    except MemoryError:
        return {"damage": f"needs more than {memory_bytes >> 20} MiB of memory"}
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            return {"disk": os.strerror(error.errno)}
        return {"damage": str(error).partition("\n")[0] or type(error).__name__}


class ParquetReader:
    """Reads rows of a file; keeps the position after an answer, where the next request continues."""

    def __init__(self, max_row_bytes: int) -> None:
        self._max_row_bytes = max_row_bytes
        self._table: pyarrow.parquet.ParquetFile | None = None
        self._position: tuple[str, int, int] | None = None
        self._rows: Iterator[bytes] = iter(())

    def opened(self, path: str) -> dict[str, Any]:
        self._position = None
        self._table = self._parquet_file(path)
        self._path = path
        schema, about = self._table.schema_arrow, self._table.metadata
        return {
            "names": schema.names,
            "depth": max(map(_depth, schema.types), default=0),
            "group_rows": [about.row_group(group).num_rows for group in range(about.num_row_groups)],
        }

    def _parquet_file(self, path: str, **options: Any) -> pyarrow.parquet.ParquetFile:
        import pyarrow.parquet

        return pyarrow.parquet.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False, **options)

    def rows(self, path: str, group: int, row: int) -> bytes:
        if (path, group, row) != self._position:
            self._rows = self._group_rows(path, group, row)
        self._position = None  # where this fails, nobody goes on
        rows, size = [], 0
        for content in self._rows:
            rows.append(content)
            size += len(content)
            if size >= ANSWER_BYTES or content is _TOO_LONG:  # what is too long took its time already
                break
        self._position = path, group, row + len(rows)
        return b"[%b]" % b",".join(rows)

    def _group_rows(self, path: str, group: int, past: int) -> Iterator[bytes]:
        """Yields the rows of a row group after the first `past`."""
        if self._table is None or self._path != path:
            self.opened(path)
        table = self._table
        assert table is not None
        pages = group_pages(table, path, group)
        num_rows = batch_rows(pages, table.metadata.row_group(group).num_rows, _MAX_ROWS, _BATCH_BYTES)
        # How many bytes the cells of a row get is known before they do.
        if names := dictionary_columns(pages, num_rows):
            table = self._parquet_file(path, read_dictionary=names, metadata=table.metadata)
        for batch in table.iter_batches(num_rows, row_groups=[group], use_threads=False):
            yield from self._batch_rows(batch.slice(past))
            past -= min(past, batch.num_rows)

    def _batch_rows(self, batch: pyarrow.RecordBatch) -> Iterator[bytes]:
        for column in batch.columns:
            if "dictionary" in str(column.type):  # an index beyond it would be read from anywhere in memory
                column.validate(full=True)
        for portion in _portions(batch):
            if portion.num_rows == 1 and _num_bytes(portion) > _BYTES_PER_JSON_BYTE * self._max_row_bytes:
                yield _TOO_LONG
                continue
            cells = [column_values(_dense(column)) for column in portion.columns]
            for values in zip(*cells, strict=True):
                yield self._row(dict(zip(portion.schema.names, values, strict=True)))

    def _row(self, row: dict[str, Any]) -> bytes:
        columns, unusable = split(row)
        content = orjson.dumps(columns)
        if len(content) > self._max_row_bytes:
            return _TOO_LONG
        return b"[%b,%b]" % (content, orjson.dumps(unusable) if unusable else b"{}")


def _portions(batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
    """Splits a batch, so that not many values are made at once."""
    half = batch.num_rows // 2
    if half == 0 or _num_bytes(batch) <= _PORTION_BYTES:
        yield batch
        return
    yield from _portions(batch.slice(0, half))
    yield from _portions(batch.slice(half))


def _num_bytes(batch: pyarrow.RecordBatch) -> int:
    """Returns the bytes of the cells, without binary ones, which become no values."""
    return sum(_cell_bytes(column) for column in batch.columns if "binary" not in str(column.type))


def _cell_bytes(column: pyarrow.Array) -> int:
    """Returns the bytes of the cells; cells that share a text count its bytes each."""
    import pyarrow
    from pyarrow import compute, types

    if "dictionary" not in str(column.type):
        return int(column.nbytes)
    if types.is_struct(column.type):
        return sum(map(_cell_bytes, column.flatten()))
    if not types.is_dictionary(column.type):
        return _cell_bytes(column.flatten())
    if not isinstance(
        column.dictionary, pyarrow.StringArray | pyarrow.LargeStringArray | pyarrow.BinaryArray
    ):
        return int(column.indices.nbytes)
    return int(compute.sum(compute.binary_length(column.dictionary).take(column.indices)).as_py() or 0)


def _dense(column: pyarrow.Array) -> pyarrow.Array:
    """Returns the cells of a dictionary column with a value each, which Arrow makes faster than one by
    one."""
    import pyarrow

    return column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column


def _depth(kind: pyarrow.DataType) -> int:
    within = [kind.field(index).type for index in range(kind.num_fields)]
    return 1 + max(map(_depth, within)) if within else 0


_BINARY = "holds binary data; must be text"
_REFUSED = {
    bytes: _BINARY,
    datetime.timedelta: "holds a duration; must be a number or text",
}
_CONVERSION_ERRORS = (ValueError, KeyError, OverflowError, OSError)
"""Bad UTF-8, an unknown zone, a year past 9999, a zone that is a folder of zones."""


class Unusable(NamedTuple):
    """Stands for a value that JSON does not know."""

    reason: str


class _NotJson(ValueError):
    """A value that JSON does not know; the message is the reason."""


def column_values(column: pyarrow.Array) -> list[Any]:
    """Returns the value of each cell as JSON has it, or an `Unusable`."""
    import pyarrow

    if _is_binary(column.type):
        return [None if is_null else Unusable(_BINARY) for is_null in column.is_null().to_pylist()]
    try:
        values = column.to_pylist()
    except _CONVERSION_ERRORS:
        values = [_converted(cell) for cell in column]
    if pyarrow.types.is_string(column.type) or pyarrow.types.is_integer(column.type):
        return cast(list[Any], values)
    return [usable(value) for value in values]


def usable(value: Any) -> Any:
    """Returns the value as JSON knows it: dates and times as ISO 8601 text, decimal numbers and UUIDs as
    text; an `Unusable` where JSON knows none."""
    try:
        return _json_value(value)
    except _NotJson as error:
        return Unusable(str(error))


def split(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns a row's usable columns, and the reasons of the others by name."""
    unusable = {column: value.reason for column, value in row.items() if isinstance(value, Unusable)}
    if not unusable:
        return row, {}
    return {column: value for column, value in row.items() if column not in unusable}, unusable


def _is_binary(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    checks = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(check(kind) for check in checks) and not types.is_decimal(kind)


def _converted(cell: pyarrow.Scalar) -> Any:
    """Returns the Python value of one cell; not UTF-8, an unknown time zone and the like make it unusable."""
    try:
        return _with_nanoseconds(cell)
    except _CONVERSION_ERRORS as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return Unusable(f"cannot be read as {cell.type} ({reason})")


def _with_nanoseconds(cell: pyarrow.Scalar) -> Any:
    """Returns the Python value of a cell, and times with nanoseconds, of which Python has none, as text."""
    import pyarrow
    from pyarrow import types

    if not cell.is_valid:
        return None
    if types.is_struct(cell.type):
        return {name: _with_nanoseconds(value) for name, value in cell.items()}
    if types.is_list(cell.type) or types.is_large_list(cell.type) or types.is_fixed_size_list(cell.type):
        return [*map(_with_nanoseconds, cell.values)]
    if types.is_duration(cell.type):
        return datetime.timedelta()  # refused whatever it is
    if not types.is_timestamp(cell.type) or cell.type.unit != "ns":
        return cell.as_py()
    microseconds, rest = divmod(cell.value, 1000)
    whole = pyarrow.scalar(microseconds, pyarrow.timestamp("us", cell.type.tz)).as_py()
    if rest == 0:
        return whole
    text: str = whole.isoformat(timespec="microseconds")
    end = text.index(".") + 7
    return f"{text[:end]}{rest:03}{text[end:]}"


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int, Unusable)):
        return value
    if isinstance(value, Real):
        return _finite(float(value))
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (Decimal, uuid.UUID)):
        return str(value)
    raise _NotJson(
        _REFUSED.get(type(value), f"holds a {type(value).__name__}; give text, numbers, lists or structs")
    )


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise _NotJson(f"{number} is no number of JSON")
    return number
