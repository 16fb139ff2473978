"""Progress of a reshard, on standard error: a bar on a terminal, else a plain line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mindbatch.checkpoint.reshard.progress import PlainProgress, Progress, TimeLeft, mebibytes


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Shows the progress that is reported within `with`; the bar disappears at the end."""
    if not sys.stderr.isatty():
        yield PlainProgress("mindbatch")
        return
    from rich.console import Console  # slow to import

    from mindbatch.io.moving_bar import MovingBar

    left = TimeLeft(time.monotonic)
    with MovingBar("MiB", Console(stderr=True)) as bar:

        def show(what: str, done: int, total: int) -> None:
            bar.set(*mebibytes(done, total), f"{what}{left(what, done, total)}")

        yield show
