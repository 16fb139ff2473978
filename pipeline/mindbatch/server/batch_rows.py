"""Runs the rows of batches in the engine's capacity that online requests do not use."""

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

_POLL_SECONDS = 0.1
"""Interval at which a batch that waits for its rows checks whether it must end."""
_ROWS_AT_ONCE = 256
NOT_RUN = {
    "cancelled": "the batch was cancelled before this request was done",
    "expired": "the completion window ended before this request was done",
    "failed": "the batch failed before this request was done",
}
Rows = Iterable[tuple[Prompt, DecodingParams]]


class Interrupted(MindBatchError):
    """Raised to leave the run of a batch: the server ends and resumes it later, or the batch has failed."""


class BackgroundRows:
    """A `run.generation.Generator` over the server's model.

    The steps are computed by the engine's thread while the batch's thread waits. If each batch computed
    steps, an online request would have to wait for one step of each.

    Args:
        share: returns the number of unfinished rows that the batch may have in the engine.
        ending: returns why the batch must end, or None. If it is cancelled or has expired, its remaining
            rows become errors with that reason.
    """

    def __init__(
        self, llm: LLM, engine: AsyncLLM, share: Callable[[], int], ending: Callable[[], str | None]
    ) -> None:
        self._llm, self._engine, self._share, self._ending = llm, engine, share, ending
        self.kernels = llm.kernels
        self._tokens = dict.fromkeys(("prompt_tokens", "cached_prompt_tokens", "generated_tokens"), 0)

    @property
    def statistics(self) -> EngineStatistics:
        """Statistics of the engine, with the token counts of these rows."""
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
                added = [*islice(source, max(0, self._share() - call.num_unfinished))]
                unfinished |= dict.fromkeys(row.key for row, _ in added)
                finished = self._add(call, added) if added else []
                if not (finished or call.num_unfinished):
                    return
                if not (finished or inbox):
                    filled.wait(_POLL_SECONDS)
                filled.clear()
                finished += call.next().finished if inbox else []
                for output in finished:
                    del unfinished[output.key]
                    self._count(output)
                yield StepResult([], finished)
        yield from self._failed(chain(unfinished, (row.key for row, _ in source)))

    def _add(self, call: Call, rows: Rows) -> list[RequestOutput]:
        """Adds rows to the engine; returns the outputs of those that it refuses."""
        requests = [self._llm.request(row, params) for row, params in rows]
        return self._engine.ask(lambda llm: call.add(requests)).result()

    def _failed(self, keys: Iterator[str]) -> Iterator[StepResult]:
        stage = self._ending() or ""
        if stage not in NOT_RUN:
            raise Interrupted("the server ends")
        while chunk := [*islice(keys, _ROWS_AT_ONCE)]:
            yield StepResult([], [RequestOutput.failed(key, NOT_RUN[stage], stage=stage) for key in chunk])

    def _count(self, output: RequestOutput) -> None:
        self._tokens["prompt_tokens"] += len(output.prompt_token_ids)
        self._tokens["cached_prompt_tokens"] += output.num_cached_tokens
        self._tokens["generated_tokens"] += sum(len(completion.token_ids) for completion in output.outputs)


def line_errors(item: DataRow | RowFailure, endpoint: str, config: ServeConfig) -> Iterator[dict[str, Any]]:
    """Yields OpenAI's error objects for an invalid line: not a request, or for another endpoint, an unknown
    model, or too many choices."""
    if isinstance(item, RowFailure):
        if item.reason != EMPTY_LINE:  # an error of the row, which does not fail the batch
            yield line_error("invalid_request", item.reason, item.line)
        return
    if item.extra["endpoint"] != endpoint:
        message = f"url={item.extra['endpoint']}: must be the batch's endpoint, {endpoint}"
        yield line_error("mismatched_endpoint", message, item.line)
    for error in (model_error(item.extra.get("model"), config), count_error(item, config)):
        if error is not None:
            yield line_error("invalid_request", f"body.{error}", item.line)


def model_error(model: str | None, config: ServeConfig) -> str | None:
    """Returns the error of a model's name in a request, or None."""
    names = [config.name, *config.lora.names]
    if model is None or model in names:
        return None
    return f"model={shown(model)}: not served here; allowed: {', '.join(names)}{did_you_mean(model, names)}"


def count_error(row: DataRow, config: ServeConfig) -> str | None:
    """Returns the error of a request's number of choices, or None."""
    if (count := row.overrides.get("num_return_sequences", 1)) > config.server.max_n:
        return f"n={count}: at most {config.server.max_n} choices"
    return None


def line_error(code: str, message: str, line: int | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": None, "line": line}
