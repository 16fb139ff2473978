"""Rows of a dataset as readers yield them: their columns, or an error."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from mindbatch.io.error_lines import did_you_mean, shown
from mindbatch.io.errors import PromptError

MAX_COLUMNS = 10_000
_MAX_TWICE = 5
_MAX_NAMED = 12
_MAX_KEPT = 1000
REQUEST = ("custom_id", "method", "url", "body")
"""The fields of a line of OpenAI's batch files."""


@dataclass(frozen=True, slots=True)
class Record:
    """One row: either its columns, as plain JSON values, or an error.

    file: the name of its file in the dataset.
    line: the line on which it begins, from 1; in a JSON array or a Parquet file, its number.
    unusable: columns of the row whose value JSON does not know, with the reason; they are not in `columns`,
        and an error only where an option names them.
    fills_absent: its mappings are structs of Parquet columns, in which a missing member is null.
    """

    file: str
    line: int
    columns: dict[str, Any] | None
    error: str | None = None
    unusable: Mapping[str, str] = field(default_factory=dict)
    fills_absent: bool = False

    @property
    def source(self) -> str:
        return f"{self.file}:{self.line}"

    def as_written(self, value: Any) -> Any:
        """Returns a value without the null members that only the struct of its column adds."""
        return _without_nulls(value) if self.fills_absent else value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, Mapping):
        # A message without content cannot be distinguished from one with null, which may be an empty answer.
        kept = "content" if isinstance(value.get("role"), str) else None
        return {
            name: _without_nulls(item) for name, item in value.items() if item is not None or name == kept
        }
    return value


def is_request(columns: Mapping[str, Any]) -> bool:
    return all(name in columns for name in REQUEST)


def columns_error(names: Sequence[str]) -> str | None:
    """Explains why rows cannot have columns of these names: too many, or several of one; None if they can."""
    if len(names) > MAX_COLUMNS:
        return f"has {len(names):,} columns; at most {MAX_COLUMNS:,} are read"
    twice = [name for name, count in Counter(names).items() if count > 1]
    if not twice:
        return None
    more = f" and {len(twice) - _MAX_TWICE} others" if len(twice) > _MAX_TWICE else ""
    return f"has more than one column {', '.join(map(shown, twice[:_MAX_TWICE]))}{more}"


@dataclass(slots=True)
class RowDraft:
    """The parts of a row that have been read, and the errors of the others.

    decoding: the row's own decoding parameters by their names in DecodingParams, not yet validated.
    adapter: the name of the row's adapter. asks_base: the row requests the model without an adapter.
    shown_as: the row's own names of decoding parameters, for error lines.
    row_errors, prompt_errors: the errors of the row's columns, and those of its prompt.
    """

    key: str | None = None
    content: dict[str, Any] = field(default_factory=dict)
    decoding: dict[str, Any] = field(default_factory=dict)
    adapter: str | None = None
    asks_base: bool = False
    shown_as: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    row_errors: list[str] = field(default_factory=list)
    prompt_errors: list[str] = field(default_factory=list)


class ColumnError(PromptError):
    """A row without a column that an option names."""


def column(record: Record, name: str, option: str) -> Any:
    """Returns the value of the column that `option` names. Raises ColumnError if the row has no such
    column."""
    columns = record.columns or {}
    if name not in columns:
        raise ColumnError(f"{option}: {missing_column(name, record)}")
    return columns[name]


class OptionalColumns:
    """Columns that some rows may lack, but not all: reports those that no row had, by their option."""

    def __init__(self, columns: Iterable[tuple[str, str | None]]) -> None:
        self._sought = [(option, name) for option, name in columns if name is not None]
        self._present: dict[str, None] = {}

    def look_in(self, record: Record) -> None:
        if not self._sought:
            return
        columns = {*(record.columns or ()), *record.unusable}
        self._sought = [(option, name) for option, name in self._sought if name not in columns]
        if len(self._present) < _MAX_KEPT:
            self._present |= dict.fromkeys(record.columns or ())

    def errors(self) -> list[str]:
        """Returns a line for each column that no row had; none if no row could be read."""
        present = tuple(self._present)
        return [
            f"{option}: {_line(name, present, 'the rows have')}" for option, name in self._sought if present
        ]


def missing_column(name: str, record: Record) -> str:
    """Returns a line that names the columns which the row has, and among them the one most like the missing
    one.

    If the row has the column but no value that could be used, the line says why.
    """
    if name in record.unusable:
        return f"column {_named(name)}: {record.unusable[name]}"
    return _line(name, tuple(record.columns or ()))


@lru_cache(maxsize=64)  # where one row lacks a column, all of them may
def _line(name: str, columns: tuple[str, ...], whose: str = "the row has") -> str:
    more = f" and {len(columns) - _MAX_NAMED} more" if len(columns) > _MAX_NAMED else ""
    known = ", ".join(map(_named, columns[:_MAX_NAMED])) + more if columns else "none at all"
    return f"no column {_named(name)}; {whose} {known}{did_you_mean(name, columns)}"


def _named(name: str) -> str:
    """Returns the name as it is where that is unmistakable, else quoted and cut short."""
    return name if name.isidentifier() and len(name) <= 40 else shown(name)
