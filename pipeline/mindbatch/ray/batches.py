"""Reads the rows of Ray Data's batches, and writes tables of results."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_type_hints

import numpy as np
import pyarrow as pa

from mindbatch.dataset.parquet_worker import column_values, split, usable
from mindbatch.dataset.records import Record, columns_error, missing_column
from mindbatch.dataset.rows import RowFailure
from mindbatch.decoding import DecodingParams
from mindbatch.io.errors import ConfigError
from mindbatch.io.screen_text import without_hidden
from mindbatch.run.parquet_results import result_cells, schema
from mindbatch.run.result_rows import FinishedRow, OutputOptions, json_text

_SOURCE = "batch"
ERROR = "error"
"""The column with the error of a row without a result."""
_INTEGERS = {
    name for name, hint in get_type_hints(DecodingParams).items() if float not in (hint, *get_args(hint))
}
"""Decoding parameters that are integers."""


Columns = Mapping[str, Any]
"""The columns of a batch by name, as Arrow arrays if Arrow has a type for their values, else as lists."""


def records(columns: Columns, decoding_column: str | None) -> Iterator[Record]:
    """Yields the rows, numbered from 1. decoding_column: see the section `data`."""
    values = {name: _values(column) for name, column in columns.items()}
    if decoding_column in values:
        values[decoding_column] = [_with_integers(value) for value in values[decoding_column]]
    for number, cells in enumerate(zip(*values.values(), strict=True), start=1):
        usable_cells, unusable = split(dict(zip(values, cells, strict=True)))
        yield Record(_SOURCE, number, usable_cells, unusable=unusable, fills_absent=True)


def extra_columns(columns: Columns, names: Sequence[str]) -> dict[str, pa.Array]:
    """Returns the columns of these names as Arrow arrays; values without an Arrow type become JSON texts.

    Raises:
        ConfigError: a column does not exist.
    """
    record = Record(_SOURCE, 0, dict.fromkeys(columns))
    if missing := [name for name in names if name not in columns]:
        raise ConfigError([f"output.columns: {missing_column(name, record)}" for name in missing])
    return {name: _array(columns[name]) for name in names}


def result_table(
    rows: Sequence[FinishedRow | RowFailure], options: OutputOptions, extra: Mapping[str, pa.Array]
) -> pa.Table:
    """Makes a table of the rows' results with the columns of a Parquet result file and `error`.

    extra: further columns of the table.
    """
    fields = [field.with_nullable(True) for field in schema(options, {})]
    result_schema = pa.schema([*fields, pa.field(ERROR, pa.string())])
    table = pa.Table.from_pylist([_cells(row, options) for row in rows], result_schema)
    for index, (name, array) in enumerate(extra.items(), start=1):
        table = table.add_column(index, name, array)
    return table


def _cells(row: FinishedRow | RowFailure, options: OutputOptions) -> dict[str, Any]:
    if isinstance(row, FinishedRow):
        return result_cells(row, options)
    return {"key": row.key, ERROR: without_hidden(row.reason)}


def columns_of(batch: Any) -> Columns:
    """Returns the columns of a batch in any of Ray's formats.

    Raises:
        ConfigError: it is not in NumPy's, pandas' or PyArrow's format, or has duplicate columns.
    """
    if isinstance(batch, pa.Table):
        names, columns = batch.column_names, batch.columns
    elif isinstance(batch, Mapping):
        names, columns = [*map(str, batch)], [*batch.values()]
    else:
        names, columns = _pandas_columns(batch)
    if error := columns_error(names):
        raise ConfigError(f"the batch {error}")
    return {name: _as_arrow(column) for name, column in zip(names, columns, strict=True)}


def _pandas_columns(batch: Any) -> tuple[list[str], list[Any]]:
    import pandas as pd  # installed with Ray Data, but not with pyarrow

    if not isinstance(batch, pd.DataFrame):
        kind = type(batch).__name__
        raise ConfigError(f"batch_format: found a {kind}; must be numpy, pandas or pyarrow")
    return [*map(str, batch.columns)], [column for _, column in batch.items()]


def _as_arrow(column: Any) -> Any:
    """Converts a column to an Arrow array, or else to plain values; pandas' and NumPy's nulls become null."""
    if not isinstance(column, (pa.Array, pa.ChunkedArray)):
        try:
            column = pa.array(column, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError):
            return [_plain(value) for value in column]
    if isinstance(column.type, pa.ExtensionType):  # tensors, and Python objects of all kinds
        return [_plain(value) for value in column.to_pylist()]
    return column


def _values(column: Any) -> list[Any]:
    """Returns the cells as JSON values."""
    if isinstance(column, list):
        return [usable(value) for value in column]
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [value for chunk in chunks for value in column_values(chunk)]


def _with_integers(parameters: Any) -> Any:
    """Restores integers, which NumPy and pandas turn into floats if other rows lack the parameter."""
    if not isinstance(parameters, dict):
        return parameters
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() and name in _INTEGERS else value
        for name, value in parameters.items()
    }


def _array(column: Any) -> Any:
    if not isinstance(column, list):
        return column
    try:
        return pa.array(column)
    except (pa.ArrowException, TypeError, ValueError):
        return pa.array([None if value is None else json_text(value) for value in column])


def _plain(value: Any) -> Any:
    """Converts NumPy's arrays and numbers to Python's, at any depth."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value
