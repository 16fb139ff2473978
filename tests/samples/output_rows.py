"""Rows as the output files of a batch get them, shared by their tests."""

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.run.result_rows import FinishedRow

AWKWARD_TEXT = '=SUM(1)\u2028今天, "quoted"\r\nline\rend\n '


def generation(
    index: int = 0, text: str = "out", token_ids: tuple[int, ...] = (7, 8), **more: Any
) -> dict[str, Any]:
    """A generation as the ledger keeps it."""
    return {
        "index": index,
        "text": text,
        "token_ids": list(token_ids),
        "finish_reason": "stop",
        "cumulative_logprob": -0.1 - 0.2,
        **more,
    }


def finished(
    key: str = "k",
    *generations: dict[str, Any],
    content: dict[str, Any] | None = None,
    prompt_logprobs: Any = None,
    **row: Any,
) -> FinishedRow:
    """A row with a prompt of three tokens and its result; one plain generation unless others are given."""
    data = DataRow(key=key, source="in.jsonl", line=3, content=content or {"text": "in"}, **row)
    body = {"generations": list(generations) or [generation()], "prompt_tokens": 3}
    if prompt_logprobs is not None:
        body["prompt_logprobs"] = prompt_logprobs
    return FinishedRow(data, body)


def failed(key: str | None = "bad", stage: str = "row", reason: str = "no column prompt") -> RowFailure:
    """A row of the same file that could not be run."""
    return RowFailure(key, "in.jsonl", 4, stage, reason)


def written(make: Callable[[io.BytesIO], AbstractContextManager[Callable[[Any], None]]], *rows: Any) -> bytes:
    """What a writer makes of rows."""
    file = io.BytesIO()
    with make(file) as add:
        for row in rows:
            add(row)
    return file.getvalue()
