"""The rows of a server's batches: checked as requests are, run in what those leave free in the engine."""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from mindbatch.async_llm import AsyncLLM
from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.decoding import DecodingParams
from mindbatch.engine.calls import Call, Inbox
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import RequestOutput
from mindbatch.engine.statistics import EngineStatistics
from mindbatch.io.error_lines import did_you_mean, shown
from mindbatch.io.errors import MindBatchError
from mindbatch.llm import LLM
from mindbatch.prompts.prompt_lines import EMPTY_LINE
from mindbatch.prompts.prompts import Prompt
from mindbatch.server.schema import ServeConfig

_SECONDS_BETWEEN_LOOKS = 0.1
"""A batch that waits for its rows looks so often whether it is to end."""
_ROWS_AT_ONCE = 256
NEVER_TRIED = {
    "cancelled": "the batch was cancelled before this request was done",
    "expired": "the completion window ended before this request was done",
    "failed": "the batch failed before this request was done",
}
Rows = Iterable[tuple[Prompt, DecodingParams]]


class Interrupted(MindBatchError):
    """The run of a batch is left: the server ends, and it goes on another time, or it has failed already."""


class BackgroundRows:
    """A `run.generation.Generator` over the server's model.

    The engine's thread computes; that of the batch waits: a request from outside would have to wait for a
    step of each that computes.

    share: unfinished rows that the batch may have in the engine. ending: why the rows are to end, or None;
    those that are left when the batch is cancelled, or its time is over, are errors that say so.
    """

    def __init__(
        self, llm: LLM, engine: AsyncLLM, share: Callable[[], int], ending: Callable[[], str | None]
    ) -> None:
        self._llm, self._engine, self._share, self._ending = llm, engine, share, ending
        self.kernels = llm.kernels
        self._tokens = dict.fromkeys(("prompt_tokens", "cached_prompt_tokens", "generated_tokens"), 0)

    @property
    def statistics(self) -> EngineStatistics:
        """The engine's load, and the tokens of these rows."""
        return replace(self._llm.statistics, **self._tokens)

    def take_notes(self) -> list[str]:
        return []

    def steps(self, rows: Rows) -> Generator[StepResult, None, None]:
        """Runs the rows.

        Raises:
            Interrupted: the server ends.
            MindBatchError: the engine has failed.
        """
        source, unfinished, filled = iter(rows), dict[str, None](), threading.Event()
        inbox = Inbox(filled.set, with_events=False)
        with closing(self._llm.call(inbox, in_background=True)) as call:
            while self._ending() is None:
                taken = [*islice(source, max(0, self._share() - call.num_unfinished))]
                unfinished |= dict.fromkeys(row.key for row, _ in taken)
                finished = self._add(call, taken) if taken else []
                if not (finished or call.num_unfinished):
                    return
                if not (finished or inbox):
                    filled.wait(_SECONDS_BETWEEN_LOOKS)
                filled.clear()
                finished += call.next().finished if inbox else []
                for output in finished:
                    del unfinished[output.key]
                    self._count(output)
                yield StepResult([], finished)
        yield from self._left(chain(unfinished, (row.key for row, _ in source)))

    def _add(self, call: Call, rows: Rows) -> list[RequestOutput]:
        """Puts rows to the engine; returns those that it refuses."""
        requests = [self._llm.request(row, params) for row, params in rows]
        return self._engine.ask(lambda llm: call.add(requests)).result()

    def _left(self, keys: Iterator[str]) -> Iterator[StepResult]:
        stage = self._ending() or ""
        if stage not in NEVER_TRIED:
            raise Interrupted("the server ends")
        while some := [*islice(keys, _ROWS_AT_ONCE)]:
            yield StepResult([], [RequestOutput.failed(key, NEVER_TRIED[stage], stage=stage) for key in some])

    def _count(self, output: RequestOutput) -> None:
        self._tokens["prompt_tokens"] += len(output.prompt_token_ids)
        self._tokens["cached_prompt_tokens"] += output.num_cached_tokens
        self._tokens["generated_tokens"] += sum(len(completion.token_ids) for completion in output.outputs)


def line_errors(item: DataRow | RowFailure, endpoint: str, config: ServeConfig) -> Iterator[dict[str, Any]]:
    """Yields OpenAI's error objects for a line that is no request of its batch's endpoint, or not of this
    server: for another model, or more choices than it gives."""
    if isinstance(item, RowFailure):
        if item.reason != EMPTY_LINE:  # an error of a row, but no reason to leave the others
            yield line_error("invalid_request", item.reason, item.line)
        return
    if item.extra["endpoint"] != endpoint:
        message = f"url={item.extra['endpoint']}: the batch's is {endpoint}"
        yield line_error("mismatched_endpoint", message, item.line)
    for error in (model_error(item.extra.get("model"), config), count_error(item, config)):
        if error is not None:
            yield line_error("invalid_request", f"body.{error}", item.line)


def model_error(model: str | None, config: ServeConfig) -> str | None:
    """Explains why a request cannot have a model of that name; None if it can."""
    names = [config.name, *config.lora.names]
    if model is None or model in names:
        return None
    return f"model={shown(model)}: not served here; there are {', '.join(names)}{did_you_mean(model, names)}"


def count_error(row: DataRow, config: ServeConfig) -> str | None:
    """Explains why a request cannot have so many choices; None if it can."""
    if (count := row.overrides.get("num_return_sequences", 1)) > config.server.max_n:
        return f"n={count}: at most {config.server.max_n} choices"
    return None


def line_error(code: str, message: str, line: int | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": None, "line": line}
