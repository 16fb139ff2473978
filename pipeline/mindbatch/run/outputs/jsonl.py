"""Results and errors as JSON, a row a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import orjson

from mindbatch.dataset.rows import RowFailure
from mindbatch.run.outputs.rows import (
    STRATEGY_FIELDS,
    FinishedRow,
    OutputOptions,
    columns_of,
    num_generated_tokens,
    prompt_of,
)


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

    key, the columns asked for, adapter (null for none; only where there are any), prompt (unless left out),
    generations, prompt_tokens, generated_tokens and, where a row asked for them, prompt_logprobs. A
    generation has index, text, token_ids (if wanted),
    finish_reason, tokens, cumulative_logprob and, where the row asked for them, logprobs; of a search that
    ranks, score and rank; of speculative decoding, drafted_tokens and accepted_tokens. There are no times: a
    resumed run writes what an unbroken one does.
    """

    def as_json(row: FinishedRow) -> Mapping[str, Any]:
        body = row.body
        generations = body["generations"]
        line: dict[str, Any] = {"key": row.key, **columns_of(row.row)}
        if options.adapter:
            line["adapter"] = row.row.adapter
        if options.prompt:
            line["prompt"] = prompt_of(row.row)
        line["generations"] = [_generation(generation, options) for generation in generations]
        line["prompt_tokens"] = body["prompt_tokens"]
        line["generated_tokens"] = num_generated_tokens(generations)
        if body.get("prompt_logprobs") is not None:
            line["prompt_logprobs"] = body["prompt_logprobs"]
        return line

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


def _generation(body: Mapping[str, Any], options: OutputOptions) -> dict[str, Any]:
    generation = {"index": body["index"], "text": body["text"]}
    if options.token_ids:
        generation["token_ids"] = body["token_ids"]
    generation["finish_reason"] = body["finish_reason"]
    generation["tokens"] = len(body["token_ids"])
    generation["cumulative_logprob"] = body["cumulative_logprob"]
    generation |= {name: body[name] for name in STRATEGY_FIELDS if name in body}
    if body.get("logprobs") is not None:
        generation["logprobs"] = body["logprobs"]
    return generation
