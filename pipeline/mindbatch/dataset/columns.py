"""Owns finding a column in a row, and what to say where there is none."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from mindbatch.dataset.records import Record
from mindbatch.io.errors import PromptError
from mindbatch.io.fault_lines import did_you_mean, shown

_MOST_NAMED = 12
_MOST_KEPT = 1000


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


class OptionalColumns:
    """Columns that a row may lack, but not every row: by the option that names each, those not yet found."""

    def __init__(self, columns: Iterable[tuple[str, str | None]]) -> None:
        self._sought = [(option, name) for option, name in columns if name is not None]
        self._found: dict[str, None] = {}

    def look_in(self, record: Record) -> None:
        """Takes notice of the columns of a row that could be read."""
        if not self._sought:
            return
        columns = {*(record.columns or ()), *record.unusable}
        self._sought = [(option, name) for option, name in self._sought if name not in columns]
        if len(self._found) < _MOST_KEPT:
            self._found |= dict.fromkeys(record.columns or ())

    def faults(self) -> list[str]:
        """A line for each column that no row had; none where no row could be read."""
        present = tuple(self._found)
        return [
            f"{option}: {_line(name, present, 'the rows have')}" for option, name in self._sought if present
        ]


def missing_column(name: str, record: Record) -> str:
    """A line that names the columns which the row has, and among them the one most like the missing one.

    If the row has the column but no value that could be used, the line says why.
    """
    if name in record.unusable:
        return f"column {_named(name)}: {record.unusable[name]}"
    return _line(name, tuple(record.columns or ()))


@lru_cache(maxsize=64)  # where one row lacks a column, all of them may
def _line(name: str, columns: tuple[str, ...], whose: str = "the row has") -> str:
    more = f" and {len(columns) - _MOST_NAMED} more" if len(columns) > _MOST_NAMED else ""
    known = ", ".join(map(_named, columns[:_MOST_NAMED])) + more if columns else "none at all"
    return f"no column {_named(name)}; {whose} {known}{did_you_mean(name, columns)}"


def _named(name: str) -> str:
    """The name as it is where that is unmistakable, else quoted and cut short."""
    return name if name.isidentifier() and len(name) <= 40 else shown(name)
