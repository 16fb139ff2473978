"""Follows the runs below a folder from another process: what they write is read, and nothing is written."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mindbatch.io.amounts import duration
from mindbatch.io.moving_bar import can_redraw
from mindbatch.io.screen_text import printable, show
from mindbatch.ledger.run_folder import RunFolder, is_running, locked_since
from mindbatch.run.manifest import rows_of
from mindbatch.run.metrics import Snapshot, last_samples, rates_between
from mindbatch.run.progress import PLAIN_LINE_SECONDS, ROW_RATE_SECONDS, clock, seconds_left
from mindbatch.tasks.runs.run_state import find_runs

LOOK_SECONDS = 1.0
SEARCH_SECONDS = 10.0
"""Time between two searches of the folder for runs that have begun since."""
NEXT_SECONDS = 10.0
"""Time for which the next run is waited for when all have ended: a sweep's jobs follow one another."""
TOKEN_RATE_SECONDS = 30.0
SILENT_SECONDS = 60.0
"""Time without a sample, after which it is shown for how long there was none."""


def watch_runs(
    top: Path,
    file: TextIO | None = None,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Path]:
    """Shows the progress of the runs that are running at and below `top` until none is; returns their paths.

    Below a folder of runs it waits a little for a next one, as of a sweep.

    file: a terminal, on which the lines move; any other gets a line of each run that has changed every half
    minute. now, sleep: the clock, in seconds.
    """
    followed: dict[Path, RunFollower] = {}
    last_search = -SEARCH_SECONDS
    last_seen = now()
    with _display(file or sys.stdout, now) as update:
        while True:
            running = [follower for follower in followed.values() if follower.is_running]
            if not running or now() - last_search >= SEARCH_SECONDS:
                last_search = now()
                for path in sorted(find_runs(top)):
                    if path not in followed and is_running(RunFolder(path)):
                        followed[path] = RunFollower(path, now)
            progress = [follower.progress() for follower in followed.values() if follower.is_running]
            if progress:
                last_seen = now()
                update(progress)
            elif not followed or RunFolder(top).holds_a_run or now() - last_seen >= NEXT_SECONDS:
                return [*followed]
            sleep(LOOK_SECONDS)


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """Progress of a run as it is shown.

    total: number of rows; 0 while they are not known. ended: rows with a result or an error.
    left: seconds until all have ended; None if unknown. silent: seconds without a sample.
    """

    path: Path
    total: int
    ended: int
    failed: int
    tokens_per_second: float = 0.0
    rows_per_second: float = 0.0
    left: float | None = None
    silent: float = 0.0

    def lines(self) -> list[str]:
        """Formats the counts with the time left, and the speed once there is one."""
        left = f"{clock(self.left)} left" if self.left is not None else ""
        left = f"no news for {duration(self.silent)}" if self.silent >= SILENT_SECONDS else left
        counts = f"{self.ended:,} of {self.total:,} rows, {self.failed:,} failed"
        lines = [", ".join(filter(None, [counts if self.total else "reading the data", left]))]
        if self.rows_per_second or self.tokens_per_second:
            lines.append(f"{self.rows_per_second:.1f} rows/s, {self.tokens_per_second:,.0f} tokens/s")
        return lines


class RunFollower:
    """Reads the progress of a run from the files in its folder."""

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        self._path = path
        self._folder = RunFolder(path)
        self._now = now
        self._last: Snapshot | None = None
        self._news = now()

    @property
    def is_running(self) -> bool:
        return is_running(self._folder)

    def progress(self) -> RunProgress:
        samples = session_samples(self._folder)
        last = samples[-1] if samples else None
        if last != self._last:
            self._last, self._news = last, self._now()
        silent = self._now() - self._news
        if last is None:  # the data is read, or the model loaded: earlier sessions left their counts
            rows = rows_of(self._folder)
            ended = rows.done + rows.failed
            return RunProgress(
                path=self._path, total=rows.total, ended=ended, failed=rows.failed, silent=silent
            )
        rows_per_second = rates_between(_since(samples, ROW_RATE_SECONDS), last).rows
        return RunProgress(
            path=self._path,
            total=last.rows_total,
            ended=last.rows_ended,
            failed=last.rows_failed,
            tokens_per_second=rates_between(_since(samples, TOKEN_RATE_SECONDS), last).generated_tokens,
            rows_per_second=rows_per_second,
            left=seconds_left(last, rows_per_second),
            silent=silent,
        )


def session_samples(folder: RunFolder) -> list[Snapshot]:
    """Reads the last samples of the session that is running; earlier ones are older than its lock."""
    since = locked_since(folder) or 0.0
    samples: list[Snapshot] = []
    for moment, snapshot in last_samples(folder.metrics):
        if samples and snapshot.seconds < samples[-1].seconds:  # another session began
            samples.clear()
        if moment >= since:
            samples.append(snapshot)
    return samples


def _since(samples: Sequence[Snapshot], seconds: float) -> Snapshot:
    """Returns the first sample of the last `seconds`; the first one of all if they cover less."""
    return next(sample for sample in samples if sample.seconds >= samples[-1].seconds - seconds)


Update = Callable[[Sequence[RunProgress]], None]


@contextmanager
def _display(file: TextIO, now: Callable[[], float]) -> Iterator[Update]:
    """Gives what shows the newest progress of all runs."""
    if not can_redraw(file):
        yield _plain_lines(file, now)
        return
    with Live(console=Console(file=file), auto_refresh=False, transient=True) as live:
        yield lambda progress: live.update(_table(progress), refresh=True)


def _plain_lines(file: TextIO, now: Callable[[], float]) -> Update:
    shown: dict[Path, tuple[float, str]] = {}

    def update(progress: Sequence[RunProgress]) -> None:
        for run in progress:
            line = f"{printable(run.path)}: {', '.join(run.lines())}"
            last = shown.get(run.path)
            if last is None or (line != last[1] and now() - last[0] >= PLAIN_LINE_SECONDS):
                shown[run.path] = now(), line
                show(line, file=file)

    return update


def _table(progress: Sequence[RunProgress]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for run in progress:
        bar = ProgressBar(total=max(run.total, 1), completed=run.ended, width=20)
        grid.add_row(Text(printable(run.path)), bar, Text("\n".join(run.lines())))
    return grid
