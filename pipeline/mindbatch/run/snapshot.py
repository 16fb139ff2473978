"""Totals of a run at one moment, and the rates between such moments."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mindbatch.io.amounts import per_second

SAMPLES_PER_WINDOW = 20


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The counts of a run at one moment.

    seconds: since the run started.
    rows_total, rows_done, rows_failed: all rows; those with a result, and those with an error, what earlier
        runs of the same job did included.
    prompt_tokens, cached_prompt_tokens, generated_tokens: of this run; of the prompts' tokens, those found in
        the cache.
    running: sequences; waiting: rows that are queued in the engine.
    cache_used: share of the cache's blocks that are in use, 0 to 1.
    preemptions: how often sequences had to give their place up, in this run.
    """

    seconds: float
    rows_total: int
    rows_done: int = 0
    rows_failed: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    running: int = 0
    waiting: int = 0
    cache_used: float = 0.0
    preemptions: int = 0

    @property
    def rows_ended(self) -> int:
        """Rows that nothing is left to do for, done or failed."""
        return self.rows_done + self.rows_failed

    @property
    def prefix_hits(self) -> float:
        """Share of the prompts' tokens that were found in the cache, 0 to 1."""
        return self.cached_prompt_tokens / max(self.prompt_tokens, 1)


@dataclass(frozen=True)
class Rates:
    """Speed of a run: tokens and rows per second."""

    prompt_tokens: float = 0.0
    generated_tokens: float = 0.0
    rows: float = 0.0


class RateMeter:
    """The rates over the last `window` seconds; over the whole run while it is younger than that.

    It keeps a few samples of the window whatever the number of snapshots.
    """

    def __init__(self, window: float = 10.0) -> None:
        self._window = window
        self._samples: deque[Snapshot] = deque()

    def rates(self, now: Snapshot) -> Rates:
        """Takes the newest snapshot; returns the rates up to it. The first one starts the measurement."""
        samples = self._samples
        while len(samples) > 1 and samples[1].seconds <= now.seconds - self._window:
            samples.popleft()
        if not samples or now.seconds - samples[-1].seconds >= self._window / SAMPLES_PER_WINDOW:
            samples.append(now)
        return rates_between(samples[0], now)


def rates_between(start: Snapshot, end: Snapshot) -> Rates:
    """The mean rates from one moment to another; nothing where no time has passed."""
    seconds = end.seconds - start.seconds
    return Rates(
        prompt_tokens=per_second(end.prompt_tokens - start.prompt_tokens, seconds),
        generated_tokens=per_second(end.generated_tokens - start.generated_tokens, seconds),
        rows=per_second(end.rows_ended - start.rows_ended, seconds),
    )
