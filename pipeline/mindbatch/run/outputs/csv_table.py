"""Results as CSV (RFC 4180, UTF-8): a header, then a line for each generation."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any, BinaryIO

from mindbatch.engine.result_json import EMBEDDING, STRATEGY_FIELDS
from mindbatch.run.outputs.rows import (
    FinishedRow,
    OutputOptions,
    cell_text,
    columns_of,
    json_text,
    prompt_text,
)


class CsvTable:
    """Writes a line for each generation of each row; lists and mappings in a cell are JSON.

    The cells hold the data as it is. A text that begins with =, +, - or @ is a formula to a spreadsheet:
    import such a file with its columns as text, never with a double click.
    """

    def __init__(self, file: BinaryIO, options: OutputOptions) -> None:
        self._file = file
        self._options = options
        self._columns = columns(options)
        self._text = io.StringIO(newline="")
        self._write({name: name for name in self._columns})

    def add(self, row: FinishedRow) -> None:
        """Takes one row."""
        shared = {
            **{name: cell_text(value) for name, value in columns_of(row.row).items()},
            "key": row.key,
            **({"adapter": row.row.adapter or ""} if self._options.adapter else {}),
            "prompt": prompt_text(row.row) if self._options.prompt else "",
            "prompt_tokens": row.body["prompt_tokens"],
            "prompt_logprobs": _cell(row.body.get("prompt_logprobs")),
        }
        for generation in row.body["generations"]:
            self._write({**shared, **_generation(generation)})

    def finish(self) -> None:
        """Nothing is left: every row is written as it comes."""

    def _write(self, cells: Mapping[str, Any]) -> None:
        csv.writer(self._text).writerow([cells[name] for name in self._columns])
        self._file.write(self._text.getvalue().encode())
        self._text.seek(0)
        self._text.truncate()


def columns(options: OutputOptions) -> list[str]:
    """The names of the columns. Cells are empty where a row did not ask for log-probabilities, nothing was
    ranked and nothing drafted."""
    return [
        "key",
        *options.columns,
        *(["adapter"] if options.adapter else []),
        *(["prompt"] if options.prompt else []),
        "index",
        "text",
        *(["token_ids"] if options.token_ids else []),
        "finish_reason",
        "tokens",
        "cumulative_logprob",
        *STRATEGY_FIELDS,
        *([EMBEDDING] if options.embeddings else []),
        "prompt_tokens",
        "logprobs",
        "prompt_logprobs",
    ]


def _generation(body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "index": body["index"],
        "text": body["text"],
        "token_ids": json_text(body["token_ids"]),
        "finish_reason": body["finish_reason"],
        "tokens": len(body["token_ids"]),
        "cumulative_logprob": body["cumulative_logprob"],
        **{name: body.get(name, "") for name in STRATEGY_FIELDS},
        EMBEDDING: _cell(body.get(EMBEDDING)),
        "logprobs": _cell(body.get("logprobs")),
    }


def _cell(value: Any) -> str:
    return "" if value is None else json_text(value)
