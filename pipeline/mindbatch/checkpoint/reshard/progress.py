"""Reports of progress, and the lines that show them."""

import time
from collections.abc import Callable

from mindbatch.io.screen_text import say

Progress = Callable[[str, int, int], None]
"""Shows progress: a description of the activity, the bytes done, and the bytes in total."""

LINE_SECONDS = 30.0
_MIB = 1 << 20


def silent(activity: str, done: int, total: int) -> None:
    """A Progress that shows nothing."""


def mebibytes(done: int, total: int) -> tuple[int, int]:
    """Converts both numbers to MiB: what is done is rounded down, the total up."""
    return done // _MIB, -(-total // _MIB)


class TimeLeft:
    """Estimate of the time left, at the rate so far. now: seconds that only grow."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._activity, self._began, self._first = "", 0.0, 0

    def __call__(self, activity: str, done: int, total: int) -> str:
        """`, 1:02:03 left`; empty while nobody can tell."""
        if activity != self._activity:
            self._activity, self._began, self._first = activity, self._now(), done
        new, seconds = done - self._first, self._now() - self._began
        if new <= 0 or seconds <= 0 or done >= total:
            return ""
        minutes, second = divmod(round((total - done) * seconds / new), 60)
        return f", {minutes // 60}:{minutes % 60:02}:{second:02} left"


class PlainProgress:
    """A line on standard error every 30 s, so that a short reshard prints none."""

    def __init__(self, name: str, now: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._now = now
        self._left = TimeLeft(now)
        self._shown = now()

    def __call__(self, activity: str, done: int, total: int) -> None:
        left = self._left(activity, done, total)
        if self._now() - self._shown < LINE_SECONDS:
            return
        self._shown = self._now()
        ended, of_all = mebibytes(done, total)
        say(f"{activity}: {ended:,} of {of_all:,} MiB{left}", name=self._name)
