"""The rows of a batch in an engine that others use: they fill what requests from outside leave free."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import TypeVar

from mindbatch.async_llm import AsyncLLM
from mindbatch.calls import Call, Delivery
from mindbatch.decoding import DecodingParams
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import RequestOutput
from mindbatch.engine.statistics import EngineStatistics
from mindbatch.io.errors import MindBatchError
from mindbatch.llm import LLM
from mindbatch.prompts.prompts import Prompt

SECONDS_BETWEEN_LOOKS = 1.0
"""A batch that waits for its rows looks so often whether it is to end."""
_ROWS_AT_ONCE = 256
NEVER_TRIED = {
    "cancelled": "the batch was cancelled before this request was done",
    "expired": "the completion window ended before this request was done",
}
Answer = TypeVar("Answer")
Rows = Iterable[tuple[Prompt, DecodingParams]]


class Interrupted(MindBatchError):
    """The server ends; the batch goes on when it is started again."""


class Places:
    """Divides the engine's places among the batches that run, with a few more rows that wait for each."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._num_batches = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self._num_batches += 1

    def leave(self) -> None:
        with self._lock:
            self._num_batches -= 1

    @property
    def share(self) -> int:
        """Unfinished rows that one batch may have in the engine: twice its places, so that all are filled."""
        return max(2, 2 * self._batch_size // max(1, self._num_batches))


class BackgroundRows:
    """A `run.generation.Generator` over the server's engine; used by the one thread that runs the batch.

    Rows that are left when the batch is cancelled, or its time is over, are errors that say so.
    """

    def __init__(self, engine: AsyncLLM, places: Places, kernels: str) -> None:
        self._engine, self._places = engine, places
        self.kernels = kernels
        self.num_done = self.num_failed = 0
        self._end: str | None = None  # why it is to end
        self._load = self._ask(lambda llm: llm.statistics)
        self._tokens = (0, 0, 0)  # of prompts, those of them that were cached, generated
        self._inbox = _WaitingInbox()

    @property
    def statistics(self) -> EngineStatistics:
        """The engine's load when rows were added last, and the tokens of these rows."""
        prompt, cached, generated = self._tokens
        return replace(
            self._load, prompt_tokens=prompt, cached_prompt_tokens=cached, generated_tokens=generated
        )

    def take_notes(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing: the engine is the server's."""

    def end(self, reason: str) -> None:
        """Has the rows end: "cancelled", "expired" or, to go on another time, "interrupted"."""
        self._end = self._end or reason
        self._inbox.filled.set()

    def steps(self, rows: Rows) -> Generator[StepResult, None, None]:
        """Runs the rows.

        Raises:
            Interrupted: the server ends.
            MindBatchError: the engine has failed.
        """
        source = iter(rows)
        call = self._ask(lambda llm: llm.call(self._inbox, in_background=True))
        unfinished: set[str] = set()
        self._places.enter()
        try:
            while self._end is None:
                taken = [*islice(source, max(0, self._places.share - call.num_unfinished))]
                unfinished.update(row.key for row, _ in taken)
                result = self._step(call, taken)
                if result is None:
                    return
                unfinished.difference_update(output.key for output in result.finished)
                yield self._counted(result)
        finally:
            self._places.leave()
            call.close()
        yield from self._left([*unfinished], source)

    def _step(self, call: Call, taken: list[tuple[Prompt, DecodingParams]]) -> StepResult | None:
        """Adds rows and waits for what a step brings; None where nothing is left."""

        def add(llm: LLM) -> tuple[list[RequestOutput], EngineStatistics]:
            return call.add([llm.request(row, params) for row, params in taken]), llm.statistics

        refused, self._load = self._ask(add) if taken else ([], self._load)
        if refused:
            return StepResult([], refused)
        if not call.num_unfinished:
            return None
        self._inbox.filled.wait(SECONDS_BETWEEN_LOOKS)
        self._inbox.filled.clear()
        return call.next() if self._inbox else StepResult([], [])

    def _left(self, keys: list[str], source: Iterator[tuple[Prompt, DecodingParams]]) -> Iterator[StepResult]:
        stage = self._end or ""
        if stage not in NEVER_TRIED:
            raise Interrupted("the server ends")
        left = chain(keys, (row.key for row, _ in source))
        while some := [*islice(left, _ROWS_AT_ONCE)]:
            failed = [RequestOutput.failed(key, NEVER_TRIED[stage], stage=stage) for key in some]
            yield self._counted(StepResult([], failed))

    def _counted(self, result: StepResult) -> StepResult:
        prompt, cached, generated = self._tokens
        for output in result.finished:
            self.num_failed += output.error is not None
            self.num_done += output.error is None
            prompt += len(output.prompt_token_ids)
            cached += output.num_cached_tokens
            generated += sum(len(completion.token_ids) for completion in output.outputs)
        self._tokens = prompt, cached, generated
        return result

    def _ask(self, function: Callable[[LLM], Answer]) -> Answer:
        try:
            return self._engine.ask(function).result()
        except MindBatchError as error:
            raise Interrupted("the server ends") if self._engine.is_closed else error from None


class _WaitingInbox(deque[Delivery]):
    """An inbox that wakes the thread which waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.filled = threading.Event()

    def append(self, delivery: Delivery, /) -> None:
        super().append(delivery)
        self.filled.set()
