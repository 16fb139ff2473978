"""Progress of a generation: a line that moves on a terminal, and the counts at its end."""

import sys
import time
from collections.abc import Generator, Iterable

from rich.console import Console

from mindbatch.engine.request import RequestOutput, StreamEvent
from mindbatch.io.amounts import counted, duration, per_second
from mindbatch.io.moving_bar import MovingBar
from mindbatch.io.screen_text import show

Item = StreamEvent | RequestOutput


def with_progress(
    items: Iterable[Item], prompts: int, *, shown: bool, alone: bool
) -> Generator[Item, None, None]:
    """The items, of which the prompts that are done and the tokens are counted; silent unless `shown`.

    alone: nothing else is written to the terminal meanwhile, so that a line may move there. It stops moving
    where the generator is closed.
    """
    tokens = done = 0
    started = time.perf_counter()
    moves = shown and alone and sys.stderr.isatty()
    with MovingBar("generating", Console(stderr=True), disable=not moves) as bar:
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
