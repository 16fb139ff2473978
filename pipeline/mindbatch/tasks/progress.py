"""A progress line on a terminal, and a closing line with the counts."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from mindbatch.engine.request import RequestOutput, StreamEvent


class Progress:
    """Counts prompts and tokens; silent unless `shown`.

    The moving line needs a terminal to itself: `output` is where the results go meanwhile.
    """

    def __init__(self, prompts: int, shown: bool, output: TextIO) -> None:
        self._shown = shown
        self._tokens = 0
        self._done = 0
        self._started = time.perf_counter()
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.0f} tokens/s"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not (shown and sys.stderr.isatty() and not output.isatty()),
        )
        self._task = self._bar.add_task("generating", total=prompts, rate=0.0)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if self._shown and error is None:
            counts = f"{self._done} prompts, {self._tokens} tokens"
            print(f"{counts} in {self._seconds:.1f} s ({self._rate:.0f} tokens/s)", file=sys.stderr)

    def count(self, item: StreamEvent | RequestOutput) -> None:
        """Takes what a step brought."""
        if isinstance(item, RequestOutput):
            self._done += 1
        else:
            self._tokens += len(item.token_ids)
        self._bar.update(self._task, completed=self._done, rate=self._rate)

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    @property
    def _rate(self) -> float:
        return self._tokens / max(self._seconds, 1e-9)
