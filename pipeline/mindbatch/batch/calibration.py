"""Measuring how fast rows are run, by running a few of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from mindbatch.batch.generation import Generator
from mindbatch.batch.index import RowIndex
from mindbatch.dataset.rows import DataRow
from mindbatch.decoding import DecodingParams
from mindbatch.errors import ConfigError

LONGEST = 30.0
"""Seconds after which a pass over the sample ends, finished or not."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Calibration:
    """What a short run took.

    outputs: sequences that were finished.
    complete: whether all were; then they tell how long an output is on average.
    """

    seconds: float
    generated_tokens: int
    outputs: int
    complete: bool

    @property
    def rate(self) -> float:
        """Generated tokens/s."""
        return self.generated_tokens / self.seconds

    @property
    def mean_output(self) -> float | None:
        """Tokens of an output, or None where only the short ones were finished."""
        return self.generated_tokens / self.outputs if self.complete and self.outputs else None


def sample_rows(index: RowIndex, count: int) -> list[DataRow]:
    """So many rows, evenly spread over those that can be run; all of them if there are fewer."""
    total = index.count(None)
    places = {number * total // count for number in range(count)}
    return [row for place, row in enumerate(index.pending()) if place in places]


def calibrate(
    generator: Generator,
    rows: Sequence[DataRow],
    params: DecodingParams,
    longest: float = LONGEST,
    clock: Clock = time.perf_counter,
) -> Calibration:
    """Runs every other row to warm up, and times the rest: graphs are compiled when they are first needed.

    longest: seconds.

    Raises:
        ConfigError: none of the rows could be run.
    """
    _run(generator, rows[::2], params, longest, clock)
    found = _run(generator, rows[1::2] or rows, params, longest, clock)
    if not found.generated_tokens:
        raise ConfigError("calibrate=true: none of the rows that were tried could be run")
    return found


def _run(
    generator: Generator, rows: Sequence[DataRow], params: DecodingParams, longest: float, clock: Clock
) -> Calibration:
    tokens = outputs = 0
    started = clock()
    with closing(generator.steps((row.prompt(), row.params(params)) for row in rows)) as steps:
        for step in steps:
            tokens += sum(len(event.token_ids) for event in step.events)
            outputs += sum(len(output.outputs) for output in step.finished)
            if clock() - started > longest:
                return Calibration(clock() - started, tokens, outputs, complete=False)
    return Calibration(clock() - started, tokens, outputs, complete=True)
