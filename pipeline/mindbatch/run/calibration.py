"""Measures the speed of generation by running a few rows."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from mindbatch.dataset.rows import DataRow
from mindbatch.decoding import DecodingParams
from mindbatch.engine.buckets import buckets_up_to, pad_to_bucket
from mindbatch.io.errors import ConfigError
from mindbatch.run.generation import Generator
from mindbatch.run.index import RowIndex
from mindbatch.run.survey import RowCheck, RowTokens

LONGEST = 10.0
"""Seconds after which the sample ends, finished or not."""
SHARE = 4
"""At most one row in so many is in the sample, so that calibrating is shorter than the run."""

Clock = Callable[[], float]


@dataclass
class Calibration:
    """Measurements of a few rows.

    seconds, generated: time and generated tokens of all steps but the first of each size.
    first_seconds: time of those first steps, in which kernels may be compiled.
    max_tokens: maximum output tokens of the rows that ended; total_tokens: generated tokens of all rows.
    """

    seconds: float = 0.0
    generated: int = 0
    first_seconds: float = 0.0
    max_tokens: int = 0
    total_tokens: int = 0

    def add(self, seconds: float, generated: int, *, is_first: bool) -> None:
        """Adds a step. is_first: of its size."""
        self.total_tokens += generated
        if is_first:
            self.first_seconds += seconds
        else:
            self.seconds += seconds
            self.generated += generated

    @property
    def rate(self) -> float:
        """Generated tokens/s."""
        if self.generated:
            return self.generated / self.seconds
        return self.total_tokens / self.first_seconds

    @property
    def share(self) -> float:
        """Generated tokens for each one that a row may have.

        Tokens of rows that have not ended count as well: short rows end first, and would stand for all.
        """
        return min(1.0, self.total_tokens / self.max_tokens) if self.max_tokens else 1.0


def sample_rows(index: RowIndex, limit: int) -> list[DataRow]:
    """Returns at most `limit` rows, one in SHARE, in random order: one of each stretch of the pending rows.

    Rows at equal distances could be more alike than all rows are, as every tenth of numbered ones is.
    """
    total, draw = index.count(None), random.Random(0)
    count = max(1, min(limit, total // SHARE))
    positions = {
        draw.randrange(number * total // count, (number + 1) * total // count) for number in range(count)
    }
    rows = [row for position, row in enumerate(index.pending()) if position in positions]
    draw.shuffle(rows)  # the time may be over before the last
    return rows


def calibrate(
    generator: Generator,
    rows: Sequence[DataRow],
    params: DecodingParams,
    check: RowCheck,
    max_batched_tokens: int,
    date: str | None = None,
    clock: Clock = time.perf_counter,
) -> Calibration:
    """Runs the rows for at most LONGEST seconds. date: see `Prompt`. Raises ConfigError: none of the rows
    could be run."""
    buckets = buckets_up_to(max_batched_tokens)
    shapes: set[tuple[int, bool]] = set()
    counted = ((row, check.count(row)) for row in rows)
    max_outputs = {
        row.key: tokens.output * tokens.samples for row, tokens in counted if isinstance(tokens, RowTokens)
    }
    prompts = ((row.prompt(date), row.params(params)) for row in rows if row.key in max_outputs)
    measured = Calibration()
    begun = before = clock()
    last = generator.statistics
    with closing(generator.steps(prompts)) as results:
        for result in results:
            now, statistics = clock(), generator.statistics
            step = statistics.since(last)
            shape = (
                pad_to_bucket(step.computed_tokens, buckets),
                step.computed_tokens == step.generated_tokens,
            )
            measured.add(now - before, step.generated_tokens, is_first=shape not in shapes)
            measured.max_tokens += sum(max_outputs[row.key] for row in result.finished if row.outputs)
            shapes.add(shape)
            before, last = now, statistics
            if now - begun > LONGEST:
                break
    if not measured.total_tokens:
        raise ConfigError("calibrate=true: none of the rows that were tried could be run")
    return measured
