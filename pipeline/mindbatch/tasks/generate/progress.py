"""A progress line on a terminal, and a closing line with the counts."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console

from mindbatch.engine.request import RequestOutput, StreamEvent
from mindbatch.run.moving_bar import MovingBar
from mindbatch.screen_text import show


class Progress:
    """Counts prompts and tokens; silent unless `shown`.

    The moving line needs a terminal to itself: `output` is where the results go meanwhile.
    """

    def __init__(self, prompts: int, shown: bool, output: TextIO) -> None:
        self._shown = shown
        self._tokens = 0
        self._done = 0
        self._started = time.perf_counter()
        self._total = prompts
        alone = sys.stderr.isatty() and not output.isatty()
        self._bar = MovingBar("generating", Console(stderr=True), disable=not (shown and alone))
        self._show()

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if self._shown and error is None:
            counts = f"{self._done} prompts, {self._tokens} tokens"
            show(f"{counts} in {self._seconds:.1f} s ({self._rate:.0f} tokens/s)", sys.stderr)

    def count(self, item: StreamEvent | RequestOutput) -> None:
        """Takes what a step brought."""
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
        return self._tokens / max(self._seconds, 1e-9)
