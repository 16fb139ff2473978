"""Rows of a Parquet file, a few at a time, as plain JSON values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from mindbatch.dataset.arrow_values import column_values, split
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
    """The rows of one row group; a value that is none of JSON is an `Unusable`."""
    about = table.metadata.row_group(group)
    row_bytes = about.total_byte_size // max(1, about.num_rows) + 1
    batch_rows = min(_MOST_ROWS, max(1, _BATCH_BYTES // row_bytes))
    for batch in table.iter_batches(batch_rows, row_groups=[group], use_threads=False):
        names = batch.schema.names
        for values in zip(*map(column_values, batch.columns), strict=True):
            yield dict(zip(names, values, strict=True))


def _record(name: str, number: int, row: dict[str, Any], max_row_bytes: int) -> Record:
    columns, unusable = split(row)
    if len(orjson.dumps(columns)) > max_row_bytes:
        return Record(name, number, None, too_long_fault("row", max_row_bytes))
    return Record(name, number, columns, unusable=unusable)
