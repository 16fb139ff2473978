"""Progress of a generation: a line that moves on a terminal, and the counts at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from types import TracebackType

from rich.console import Console

from mindbatch.engine.request import RequestOutput, StreamEvent
from mindbatch.io.amounts import counted, duration, per_second
from mindbatch.io.moving_bar import MovingBar
from mindbatch.io.screen_text import show


class GenerationProgress:
    """Counts prompts and tokens; silent unless `shown`.

    alone: nothing else is written to the terminal meanwhile, so that a line may move there.
    """

    def __init__(self, prompts: int, *, shown: bool, alone: bool) -> None:
        self._shown = shown
        self._tokens = 0
        self._done = 0
        self._started = time.perf_counter()
        self._total = prompts
        moves = shown and alone and sys.stderr.isatty()
        self._bar = MovingBar("generating", Console(stderr=True), disable=not moves)
        self._show()

    def __enter__(self) -> GenerationProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if self._shown and error is None:
            counts = f"{counted(self._done, 'prompt')}, {counted(self._tokens, 'token')}"
            show(f"{counts} in {duration(self._seconds)} ({self._rate:,.0f} tokens/s)", sys.stderr)

    def following(
        self, items: Iterable[StreamEvent | RequestOutput]
    ) -> Iterator[StreamEvent | RequestOutput]:
        """The items, each counted before it is given."""
        for item in items:
            self.count(item)
            yield item

    def count(self, item: StreamEvent | RequestOutput) -> None:
        if isinstance(item, RequestOutput):
            self._done += 1
        else:
            self._tokens += len(item.token_ids)
        self._show()

    def _show(self) -> None:
        self._bar.set(self._done, self._total, f"{self._rate:.0f} tokens/s")

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    @property
    def _rate(self) -> float:
        return per_second(self._tokens, self._seconds)
