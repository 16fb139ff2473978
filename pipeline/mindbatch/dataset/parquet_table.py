"""Rows of a Parquet file, a few at a time, as plain JSON values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from mindbatch.dataset.arrow_values import BINARY, cell_sizes, column_values, holds_binary, portions, split
from mindbatch.dataset.byte_streams import DamagedData
from mindbatch.dataset.data_files import DataFile
from mindbatch.dataset.parquet_footer import RowGroup, page_bytes, read_footer
from mindbatch.dataset.records import Record, columns_fault
from mindbatch.io import amounts
from mindbatch.io.errors import MindBatchError
from mindbatch.io.screen_text import printable
from mindbatch.prompts.prompt_lines import MAX_DEPTH, too_long_fault

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

_MOST_ROWS = 1024
_BATCH_BYTES = 64 << 20
"""Bytes of the rows that Arrow holds."""
_PORTION_BYTES = 4 << 20
"""Bytes of those rows that are values."""
_READ_BYTES = 1 << 18
_BYTES_PER_JSON_BYTE = 4  # a 0 and its comma, as a number of 8 bytes
_SPARE_BYTES = 64 << 20
"""That a row group may take beyond what its rows may."""


def parquet_rows(file: DataFile, max_row_bytes: int) -> Iterator[Record]:
    """A row from each row, numbered from 1. A row group that is damaged is one fault; the others go on."""
    groups = read_footer(file).groups
    with _faults(file.path), _parquet(file) as table:
        past = 1
        for place, group in enumerate(groups):
            number, past = past, past + group.num_rows
            try:
                with _faults(file.path):
                    batch_rows = _batch_rows(group, page_bytes(file, group), max_row_bytes)
                    for row in _group_rows(table, place, batch_rows, max_row_bytes):
                        yield _record(file.name, number, row, max_row_bytes)
                        number += 1
            except DamagedData as damage:
                which = f"row {number}" if number >= past - 1 else f"rows {number} to {past - 1}"
                yield Record(file.name, number, None, f"{which} cannot be read ({damage})")


def parquet_fault(file: DataFile) -> str | None:
    """Explains why the file as a whole cannot be read; None if it can."""
    try:
        depth = read_footer(file).depth
        if depth > MAX_DEPTH:
            return f"has a column nested {depth:,} levels deep; at most {MAX_DEPTH} are read"
        with _faults(file.path), _parquet(file) as table:
            names = table.schema_arrow.names
    except DamagedData as damage:
        return f"is not a Parquet file ({damage})"
    return columns_fault(names) if names else "has no columns"


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """Turns Arrow's errors into DamagedData, or MindBatchError where the system says that the disk fails."""
    import pyarrow

    try:
        yield
    except (OSError, IndexError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise MindBatchError(f"{path}: cannot be read ({os.strerror(error.errno)})") from error
        raise DamagedData(printable(str(error).partition("\n")[0])) from error


def _parquet(file: DataFile) -> pyarrow.parquet.ParquetFile:
    """The file, to be read in small pieces; a text that several cells share stays one in memory."""
    import pyarrow.parquet

    options = {"buffer_size": _READ_BYTES, "pre_buffer": False}
    with pyarrow.parquet.ParquetFile(file.path, **options) as table:
        about = table.metadata
    leaves = [about.schema.column(number) for number in range(about.num_columns)]
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    return pyarrow.parquet.ParquetFile(file.path, metadata=about, read_dictionary=texts, **options)


def _group_rows(
    table: pyarrow.parquet.ParquetFile, place: int, batch_rows: int, max_row_bytes: int
) -> Iterator[dict[str, Any] | None]:
    """The rows of a row group, None for one that is too long; what JSON does not know is an `Unusable`."""
    for batch in table.iter_batches(batch_rows, row_groups=[place], use_threads=False):
        yield from _batch_values(batch, max_row_bytes)


def _batch_rows(group: RowGroup, in_pages: int, max_row_bytes: int) -> int:
    """Chooses the number of rows that are unpacked at a time. in_pages: see `page_bytes`.

    Raises:
        DamagedData: so much in so few rows that it is not unpacked at all.
    """
    rows, unpacked = group.num_rows, max(group.unpacked_bytes, in_pages)
    if unpacked > rows * _BYTES_PER_JSON_BYTE * max_row_bytes + _SPARE_BYTES:
        raise DamagedData(
            f"{amounts.size(unpacked)} in {amounts.counted(rows, 'row')}; data.max_line_bytes allows "
            f"{max_row_bytes} bytes a row"
        )
    return min(_MOST_ROWS, max(1, _BATCH_BYTES * rows // max(1, unpacked)))


def _batch_values(batch: pyarrow.RecordBatch, max_row_bytes: int) -> Iterator[dict[str, Any] | None]:
    """Yields values as `_group_rows`: none is made that is too large, nor many at once."""
    names, columns = batch.schema.names, batch.columns
    sizes = [cell_sizes(column) for column in columns]
    # What is binary becomes no value, so that it makes no row too long.
    of_text = [0 if holds_binary(column.type) else 1 for column in columns]
    row_sizes = np.dot(of_text, sizes)
    for rows in portions(np.sum(sizes, axis=0), _PORTION_BYTES):
        is_alone = rows.stop - rows.start == 1
        if is_alone and row_sizes[rows.start] > max_row_bytes:
            yield None
            continue
        cells = [
            [BINARY] if is_alone and size[rows.start] > max_row_bytes else column_values(_dense(column[rows]))
            for column, size in zip(columns, sizes, strict=True)
        ]
        for values in zip(*cells, strict=True):
            yield dict(zip(names, values, strict=True))


def _dense(column: pyarrow.Array) -> pyarrow.Array:
    """The cells with a value of their own each."""
    import pyarrow

    return column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column


def _record(name: str, number: int, row: dict[str, Any] | None, max_row_bytes: int) -> Record:
    columns, unusable = split(row or {})
    if row is None or len(orjson.dumps(columns)) > max_row_bytes:
        return Record(name, number, None, too_long_fault("row", max_row_bytes))
    return Record(name, number, columns, unusable=unusable)
