"""Shows the progress of a generation: a bar on a terminal or in a notebook, and the counts at its end."""

import sys
import time
from collections.abc import Generator, Iterable

from rich.console import Console

from mindbatch.engine.request import RequestOutput, StreamEvent
from mindbatch.io.amounts import counted, duration, per_second
from mindbatch.io.moving_bar import MovingBar
from mindbatch.io.screen_text import show

RunItem = StreamEvent | RequestOutput


def with_progress(
    items: Iterable[RunItem], prompts: int, *, shown: bool, alone: bool
) -> Generator[RunItem, None, None]:
    """Yields the items and counts finished prompts and tokens; prints the counts at the end if `shown`.

    alone: nothing else writes to the terminal meanwhile, so that a progress bar is shown until the end.
    """
    tokens = done = 0
    started = time.perf_counter()
    console = Console(stderr=True)
    has_bar = shown and alone and (console.is_jupyter or sys.stderr.isatty())
    with MovingBar("generating", console, disable=not has_bar) as bar:
        bar.set(0, prompts, "0 tokens/s")
        for item in items:
            if isinstance(item, RequestOutput):
                done += 1
            else:
                tokens += len(item.token_ids)
            bar.set(done, prompts, f"{per_second(tokens, time.perf_counter() - started):.0f} tokens/s")
            yield item
    if shown:
        seconds = time.perf_counter() - started
        counts = f"{counted(done, 'prompt')}, {counted(tokens, 'token')} in {duration(seconds)}"
        show(f"{counts} ({per_second(tokens, seconds):,.0f} tokens/s)", file=sys.stderr)
