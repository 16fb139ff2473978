"""Results as CSV (RFC 4180, UTF-8): a header, then a line for each generation."""

import codecs
import csv
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from mindbatch.engine.result_json import EMBEDDING, GENERATION_FIELDS, generation_fields
from mindbatch.run.outputs.rows import (
    AddRow,
    FinishedRow,
    OutputOptions,
    cell_text,
    columns_of,
    json_text,
    prompt_text,
)


@contextmanager
def csv_table(file: BinaryIO, options: OutputOptions) -> Iterator[AddRow]:
    """Writes a line for each generation of each row; lists and mappings in a cell are JSON.

    The cells hold the data as it is. A text that begins with =, +, - or @ is a formula to a spreadsheet:
    import such a file with its columns as text, never with a double click.
    """
    text = codecs.getwriter("utf-8")(file)
    table = csv.DictWriter(text, columns(options), restval="", extrasaction="ignore")
    table.writeheader()

    def add(row: FinishedRow) -> None:
        shared = {
            **{name: cell_text(value) for name, value in columns_of(row.row).items()},
            "key": row.key,
            **({"adapter": row.row.adapter} if options.adapter else {}),
            "prompt": prompt_text(row.row),
            "prompt_tokens": row.body["prompt_tokens"],
            "prompt_logprobs": row.body.get("prompt_logprobs"),
        }
        for generation in row.body["generations"]:
            cells = shared | generation_fields(generation, options.token_ids)
            table.writerow({name: _cell(value) for name, value in cells.items()})

    yield add


def columns(options: OutputOptions) -> list[str]:
    """The names of the columns. Cells are empty where a row did not ask for log-probabilities, nothing was
    ranked and nothing drafted."""
    unwanted = {EMBEDDING: not options.embeddings, "token_ids": not options.token_ids, "logprobs": True}
    return [
        "key",
        *options.columns,
        *(["adapter"] if options.adapter else []),
        *(["prompt"] if options.prompt else []),
        *(name for name in GENERATION_FIELDS if not unwanted.get(name)),
        "prompt_tokens",
        "logprobs",  # which are long
        "prompt_logprobs",
    ]


def _cell(value: object) -> object:
    return json_text(value) if isinstance(value, list) else value
