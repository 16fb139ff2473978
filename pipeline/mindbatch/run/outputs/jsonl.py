"""Results and errors as JSON, a row a line."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, BinaryIO

import orjson

from mindbatch.dataset.rows import RowFailure
from mindbatch.engine.result_json import result_fields
from mindbatch.run.outputs.rows import (
    FailureWriter,
    FinishedRow,
    OutputOptions,
    RowWriter,
    columns_of,
    prompt_of,
)


@contextmanager
def json_lines(
    file: BinaryIO, as_json: Callable[[Any], Mapping[str, Any]]
) -> Iterator[Callable[[Any], None]]:
    """Writes a line for each row, which says what `as_json` makes of it."""

    def add(row: FinishedRow | RowFailure) -> None:
        file.write(orjson.dumps(as_json(row), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE))

    yield add


def result_lines(file: BinaryIO, options: OutputOptions) -> RowWriter:
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

    return json_lines(file, as_json)


def error_lines(file: BinaryIO) -> FailureWriter:
    """The project's own form of errors: key, source, line, stage and reason."""
    return json_lines(file, asdict)
