"""Rows of a Parquet file, a few at a time, as plain JSON values."""

from __future__ import annotations

import datetime
import math
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import orjson

from mindbatch.dataset.byte_streams import DamagedData
from mindbatch.dataset.data_files import DataFile
from mindbatch.dataset.records import Record, columns_fault
from mindbatch.errors import MindBatchError
from mindbatch.prompts.prompt_lines import too_long_fault

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

_BATCH_BYTES = 1 << 22
_MOST_ROWS = 1024
_READ_BYTES = 1 << 18
_REFUSED = {
    bytes: "holds binary data; must be text",
    datetime.timedelta: "holds a duration; must be a number or text",
}
_CONVERSION_FAULTS = (ValueError, KeyError, OverflowError)  # bad UTF-8, an unknown zone, a year past 9999


class _Unusable(NamedTuple):
    """Stands for a value that JSON does not know."""

    reason: str


class _NotJson(ValueError):
    """The reason why a value has no place in JSON."""


def parquet_rows(file: DataFile, max_row_bytes: int) -> Iterator[Record]:
    """A row from each row, numbered from 1. A row group that is damaged is one fault; the others go on."""
    with _faults(file.path), _parquet(file) as table:
        past = 1
        for group in range(table.num_row_groups):
            number, past = past, past + table.metadata.row_group(group).num_rows
            try:
                with _faults(file.path):
                    for row in _group_rows(table, group):
                        yield _record(file.name, number, row, max_row_bytes)
                        number += 1
            except DamagedData as damage:
                yield Record(
                    file.name, number, None, f"rows {number} to {past - 1} cannot be read ({damage})"
                )


def parquet_fault(file: DataFile) -> str | None:
    """Why the file as a whole cannot be read, or None."""
    try:
        with _faults(file.path), _parquet(file) as table:
            names = table.schema_arrow.names
    except DamagedData as damage:
        return f"is not a Parquet file ({damage})"
    return columns_fault(names) if names else "has no columns"


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """What Arrow raises becomes DamagedData, or MindBatchError where the system says that the disk fails."""
    import pyarrow

    try:
        yield
    except (OSError, pyarrow.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise MindBatchError(f"{path}: cannot be read ({os.strerror(error.errno)})") from error
        raise DamagedData(str(error).partition("\n")[0]) from error


def _parquet(file: DataFile) -> pyarrow.parquet.ParquetFile:
    """The file, to be read in small pieces."""
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(file.path, buffer_size=_READ_BYTES, pre_buffer=False)


def _group_rows(table: pyarrow.parquet.ParquetFile, group: int) -> Iterator[dict[str, Any]]:
    """The rows of one row group; a value that is none of JSON is an `_Unusable`."""
    about = table.metadata.row_group(group)
    row_bytes = about.total_byte_size // max(1, about.num_rows) + 1
    batch_rows = min(_MOST_ROWS, max(1, _BATCH_BYTES // row_bytes))
    for batch in table.iter_batches(batch_rows, row_groups=[group], use_threads=False):
        names = batch.schema.names
        for values in zip(*map(_values, batch.columns), strict=True):
            yield dict(zip(names, values, strict=True))


def _record(name: str, number: int, row: dict[str, Any], max_row_bytes: int) -> Record:
    unusable = {column: value.reason for column, value in row.items() if isinstance(value, _Unusable)}
    columns = {column: value for column, value in row.items() if column not in unusable} if unusable else row
    if len(orjson.dumps(columns)) > max_row_bytes:
        return Record(name, number, None, too_long_fault("row", max_row_bytes))
    return Record(name, number, columns, unusable=unusable) if unusable else Record(name, number, columns)


def _values(column: pyarrow.Array) -> list[Any]:
    import pyarrow

    try:
        values = column.to_pylist()
    except _CONVERSION_FAULTS:
        values = [_converted(cell) for cell in column]
    if pyarrow.types.is_string(column.type) or pyarrow.types.is_integer(column.type):
        return cast(list[Any], values)
    return [_usable(value) for value in values]


def _converted(cell: pyarrow.Scalar) -> Any:
    """The Python value of one cell; not UTF-8, an unknown time zone and the like make it unusable."""
    try:
        return cell.as_py()
    except _CONVERSION_FAULTS as error:
        return _Unusable(f"cannot be read ({error})")


def _usable(value: Any) -> Any:
    try:
        return _json_value(value)
    except _NotJson as fault:
        return _Unusable(str(fault))


def _json_value(value: Any) -> Any:
    """The value as JSON knows it: dates and times as ISO 8601 text, decimal numbers and UUIDs as text."""
    if value is None or isinstance(value, (str, bool, int, _Unusable)):
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
