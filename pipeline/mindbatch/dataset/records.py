"""What a reader hands on: one row of a dataset as it was found, or why it could not be read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """One row: either its columns, as plain JSON values, or a fault.

    file: the name of its file within the dataset.
    line: from 1: the line on which it begins; in a JSON array or a Parquet file, its number.
    unusable: columns that this row has but whose value is none that JSON knows, each with the reason; they
        are not among `columns` and harm only who wants them.
    """

    file: str
    line: int
    columns: dict[str, Any] | None
    fault: str | None = None
    unusable: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Where the row stands, as error lines name it."""
        return f"{self.file}:{self.line}"
