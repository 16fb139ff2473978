"""Watching a run: what the engine says after each step is shown on standard error and recorded."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console

from mindbatch.engine.statistics import EngineStatistics
from mindbatch.io.amounts import counted, duration
from mindbatch.io.moving_bar import LoadingLine, MovingBar, can_redraw
from mindbatch.io.screen_text import show
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.generation import Generator, Tally
from mindbatch.run.index import RowCounts
from mindbatch.run.manifest import Session, now
from mindbatch.run.metrics import MetricsLog, RateMeter, Rates, Snapshot, rates_between

_LOOKED_AT = 1 << 12
"""Rows between two looks at the clock."""
_MOVING_SECONDS = 0.5


@contextmanager
def reading_line(
    kind: str, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int, int], None]]:
    """Gives what is called with counts of rows: on a terminal a line that changes, else one every 30 s.

    kind: as of `run_progress`.
    """
    file = file or sys.stderr
    is_live = kind == "rich" or (kind == "auto" and can_redraw(file))
    seconds, last = _MOVING_SECONDS if is_live else PLAIN_LINE_SECONDS, clock()

    def on_row(rows: int, errors: int) -> None:
        nonlocal last
        if rows % _LOOKED_AT or kind == "none" or clock() - last < seconds:
            return
        last = clock()
        text = f"{counted(rows, 'row')} read, {counted(errors, 'error')}"
        if is_live:
            line(text)
        else:
            show(text, file=file)

    with LoadingLine(shown=is_live, file=file, forced=kind == "rich") as line:
        yield on_row


PLAIN_LINE_SECONDS = 30.0
# Rows end in bursts and are of all lengths: what is left is reckoned with the rate of a longer time.
ROW_RATE_SECONDS = 300.0


@contextmanager
def run_progress(kind: str, file: TextIO | None = None) -> Iterator[Callable[[Snapshot], None]]:
    """Gives what shows the newest counts of a run; may be called after every step. The first ones, taken when
    the run starts, say what earlier runs had done. What this one has done is said at any end.

    kind: none, plain, rich or auto, which is rich on a terminal that can move its cursor and in a notebook,
        else plain.
    """
    file = file or sys.stderr
    console = Console(file=file, force_terminal=True if kind == "rich" else None)
    is_live = kind == "rich" or (kind == "auto" and (console.is_jupyter or can_redraw(file)))
    bar = MovingBar("batch", console, disable=not is_live)
    tokens, rows = RateMeter(), RateMeter(ROW_RATE_SECONDS)
    first: Snapshot | None = None
    last: Snapshot | None = None
    printed = 0.0

    def update(snapshot: Snapshot) -> None:
        nonlocal first, last, printed
        if first is None:
            first, printed = snapshot, snapshot.seconds
        last, rates = snapshot, tokens.rates(snapshot)
        left = clock(seconds_left(snapshot, rows.rates(snapshot).rows))
        if is_live:
            note = f"{snapshot.rows_failed} failed, {left} left"
            bar.set(snapshot.rows_ended, snapshot.rows_total, note, engine_line(snapshot, rates))
        elif kind != "none" and snapshot.seconds - printed >= PLAIN_LINE_SECONDS:
            printed = snapshot.seconds
            show(status_line(snapshot, rates, left), file=file)

    try:
        with bar:
            yield update
    finally:
        if first is not None and last is not None and kind != "none":
            show(closing_line(first, last), file=file)


def seconds_left(snapshot: Snapshot, rows_per_second: float) -> float | None:
    """Returns the time until all rows have ended; None while it cannot be estimated."""
    left = snapshot.rows_total - snapshot.rows_ended
    if left <= 0:
        return 0.0
    return left / rows_per_second if rows_per_second > 0 else None


def status_line(snapshot: Snapshot, rates: Rates, left: str) -> str:
    rows = f"{snapshot.rows_done:,} of {snapshot.rows_total:,} rows done, {snapshot.rows_failed:,} failed"
    return f"{rows}, {engine_line(snapshot, rates)}, {left} left"


def engine_line(snapshot: Snapshot, rates: Rates) -> str:
    return (
        f"prompt {rates.prompt_tokens:.0f} tokens/s, generated {rates.generated_tokens:.0f} tokens/s, "
        f"{snapshot.running} running, {snapshot.waiting} waiting, "
        f"cache {snapshot.cache_used:.0%}, prefix hits {snapshot.prefix_hits:.0%}"
    )


def closing_line(first: Snapshot, last: Snapshot) -> str:
    """Summarizes a session between its first and its last snapshot; rows that failed, most before they
    ran, are counted elsewhere."""
    seconds, rate = last.seconds - first.seconds, rates_between(first, last).generated_tokens
    rows = f"{counted(last.rows_done - first.rows_done, 'row')} run"
    prompts = f"{counted(last.prompt_tokens, 'prompt token')} ({last.prefix_hits:.0%} found in the cache)"
    generated = f"{last.generated_tokens:,} generated ({rate:,.0f} tokens/s)"
    return f"{rows} in {duration(seconds)}; {prompts}, {generated}"


def clock(seconds: float | None) -> str:
    """Seconds as 1:02:03 or 2:03; a dash where they are not known."""
    if seconds is None:
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class Monitor:
    """Counts one session of a run.

    rows: what earlier sessions have done.
    """

    def __init__(self, config: BatchConfig, folder: RunFolder, rows: RowCounts) -> None:
        self._config = config
        self._folder = folder
        self._before = rows
        self._started = now()
        self._tally = Tally()
        self._last = Snapshot(seconds=0.0, rows_total=rows.total)
        self._cache_waste = 0.0

    @contextmanager
    def watching(self, generator: Generator) -> Iterator[Callable[[Tally], None]]:
        """Gives what is to be called after each step; shows and records its counts."""
        start = time.perf_counter()
        with (
            run_progress(self._config.progress) as show_counts,
            MetricsLog(self._folder.metrics) as metrics,
        ):
            before = generator.statistics  # of other runs, where the model is shared

            def on_step(tally: Tally) -> None:
                self._tally = tally
                self._take(generator.statistics.since(before), time.perf_counter() - start)
                show_counts(self._last)
                metrics.sample(self._last)

            self._take(before.since(before), 0.0)
            show_counts(self._last)
            yield on_step

    def session(self) -> Session:
        last = self._last
        return Session(
            started=self._started,
            seconds=round(last.seconds, 3),
            rows=self._tally.done + self._tally.failed,
            prompt_tokens=last.prompt_tokens,
            cached_prompt_tokens=last.cached_prompt_tokens,
            generated_tokens=last.generated_tokens,
            cache_waste=round(self._cache_waste, 4),
        )

    def _take(self, statistics: EngineStatistics, seconds: float) -> None:
        self._cache_waste = statistics.cache_waste
        self._last = Snapshot(
            seconds=seconds,
            rows_total=self._before.total,
            rows_done=self._before.done + self._tally.done,
            rows_failed=self._before.failed + self._tally.failed,
            prompt_tokens=statistics.prompt_tokens,
            cached_prompt_tokens=statistics.cached_prompt_tokens,
            generated_tokens=statistics.generated_tokens,
            running=statistics.running_sequences,
            waiting=statistics.waiting_requests,
            cache_used=statistics.cache_use,
            preemptions=statistics.num_preemptions,
        )
