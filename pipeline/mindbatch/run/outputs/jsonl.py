"""Results and errors as JSON, a row a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import orjson

from mindbatch.dataset.rows import RowFailure
from mindbatch.engine.result_json import result_fields
from mindbatch.run.outputs.rows import FinishedRow, OutputOptions, columns_of, prompt_of


class JsonLines:
    """Writes a line for each row that it gets.

    as_json: what the line of a row says.
    """

    def __init__(self, file: BinaryIO, as_json: Callable[[Any], Mapping[str, Any]]) -> None:
        self._file = file
        self._as_json = as_json

    def add(self, row: FinishedRow | RowFailure) -> None:
        """Takes one row."""
        line = orjson.dumps(self._as_json(row), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE)
        self._file.write(line)

    def finish(self) -> None:
        """Nothing is left: every row is written as it comes."""


def result_lines(file: BinaryIO, options: OutputOptions) -> JsonLines:
    """The project's own form of results.

    key, the columns asked for, adapter (null for none; only where there are any), prompt (unless left out)
    and `result_fields`.
    """

    def as_json(row: FinishedRow) -> Mapping[str, Any]:
        line: dict[str, Any] = {"key": row.key, **columns_of(row.row)}
        if options.adapter:
            line["adapter"] = row.row.adapter
        if options.prompt:
            line["prompt"] = prompt_of(row.row)
        return line | result_fields(row.body, options.token_ids)

    return JsonLines(file, as_json)


def error_lines(file: BinaryIO) -> JsonLines:
    """The project's own form of errors: key, source, line, stage and reason."""

    def as_json(row: RowFailure) -> Mapping[str, Any]:
        return {
            "key": row.key,
            "source": row.source,
            "line": row.line,
            "stage": row.stage,
            "reason": row.reason,
        }

    return JsonLines(file, as_json)
