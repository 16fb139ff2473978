"""Owns finding a column in a row, and what to say where there is none."""

from functools import lru_cache
from typing import Any

from mindbatch.config.suggest import did_you_mean, nearest
from mindbatch.data.messages import shown
from mindbatch.dataset.records import Record
from mindbatch.errors import PromptError

_MOST_NAMED = 12


class ColumnError(PromptError):
    """A row whose columns are not those that were asked for."""


def column(record: Record, name: str, option: str) -> Any:
    """The value of the column that `option` names.

    Raises:
        ColumnError: the row has no such column.
    """
    columns = record.columns or {}
    if name not in columns:
        raise ColumnError(f"{option}: {missing_column(name, record)}")
    return columns[name]


def missing_column(name: str, record: Record) -> str:
    """A line that names the columns which the row has, and among them the one most like the missing one.

    If the row has the column but no value that could be used, the line says why.
    """
    if name in record.unusable:
        return f"column {_named(name)}: {record.unusable[name]}"
    return _line(name, tuple(record.columns or ()))


@lru_cache(maxsize=64)  # where one row lacks a column, all of them may
def _line(name: str, columns: tuple[str, ...]) -> str:
    more = f" and {len(columns) - _MOST_NAMED} more" if len(columns) > _MOST_NAMED else ""
    found = ", ".join(map(_named, columns[:_MOST_NAMED])) + more if columns else "none at all"
    return f"no column {_named(name)}; the row has {found}{did_you_mean(nearest(name, columns))}"


def _named(name: str) -> str:
    """The name as it is where that is unmistakable, else quoted and cut short."""
    return name if name.isidentifier() and len(name) <= 40 else shown(name)
