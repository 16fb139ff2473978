"""Measuring how long steps take, by running a few rows, and what that makes of a whole dataset."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np
import numpy.typing as npt

from mindbatch.dataset.rows import DataRow
from mindbatch.decoding import DecodingParams
from mindbatch.engine.batch import buckets_up_to, pad_to_bucket
from mindbatch.io.errors import ConfigError
from mindbatch.run.generation import Generator
from mindbatch.run.index import RowIndex

LONGEST = 10.0
"""Seconds after which the sample ends, finished or not."""
SHARE = 4
"""At most one row in so many is in the sample, so that calibrating is shorter than the run."""
MOST_SIMULATED = 20_000
"""Sequences beyond which the last ones, that run in an emptying batch, are too few to matter."""

Clock = Callable[[], float]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StepTime:
    """One step. computed: tokens that passed through the model. is_first: of its shape, so with compiling."""

    seconds: float
    computed: int
    generated: int
    is_first: bool


@dataclass(frozen=True)
class Calibration:
    """Measurements of a few rows.

    steps: seconds of each, and what it did.
    lengths: generated tokens of each sequence that ended; unfinished: of those that had not ended yet.
    prompt_tokens: of the rows that were admitted; cached: those of them found in the cache.
    """

    steps: Sequence[StepTime]
    lengths: Sequence[int]
    unfinished: Sequence[int] = ()
    prompt_tokens: int = 0
    cached: int = 0

    def sequence_lengths(self, count: int, longest: int) -> list[int]:
        """Plausible lengths of so many sequences, in no order; none is above `longest`.

        From the distribution of lengths of which some are only known to be longer than what was seen (Kaplan
        and Meier 1958); what it leaves open at its end counts as `longest`.
        """
        survivors = self._survivors()
        shares = [1 - (number + 0.5) / count for number in range(count)]
        random.Random(count).shuffle(shares)
        return [
            min(longest, next((length for length, share in survivors if share < wanted), longest))
            for wanted in shares
        ]

    def _survivors(self) -> list[tuple[int, float]]:
        """Each length at which a sequence ended, with the share of sequences that are longer."""
        at_risk, share, survivors = len(self.lengths) + len(self.unfinished), 1.0, []
        ended = Counter(self.lengths)
        for length in sorted({*self.lengths, *self.unfinished}):
            if ended[length]:
                share *= 1 - ended[length] / at_risk
                survivors.append((length, share))
            at_risk -= ended[length] + self.unfinished.count(length)
        return survivors

    def compile_seconds(self) -> float:
        """Time beyond that of an ordinary step, in the steps that were the first of their shape."""
        costs = self._costs()
        return sum(
            max(0.0, step.seconds - float(_regressors(step) @ costs)) for step in self.steps if step.is_first
        )

    def seconds_of(self, steps: float, computed: float, generated: float) -> float:
        """The time of so many steps with so many tokens in all, everything compiled."""
        return float(np.array([steps, computed, generated]) @ self._costs())

    @property
    def computed_per_generated(self) -> float:
        """Tokens computed for each one that is returned, prompts apart: of searches, more than one."""
        generated = sum(step.generated for step in self.steps)
        computed = sum(step.computed for step in self.steps) - (self.prompt_tokens - self.cached)
        return max(1.0, computed / generated) if generated else 1.0

    def _costs(self) -> FloatArray:
        """Seconds of a step, of a token computed and of one generated: least squares, none negative."""
        steps = [step for step in self.steps if not step.is_first] or list(self.steps)
        rows = np.array([_regressors(step) for step in steps])
        seconds = np.array([step.seconds for step in steps])
        costs, kept = np.zeros(3), [0, 1, 2]
        while kept:
            solution = np.linalg.lstsq(rows[:, kept], seconds, rcond=None)[0]
            if solution.min() >= 0:
                costs[kept] = solution
                break
            kept.pop(int(solution.argmin()))
        return costs


def _regressors(step: StepTime) -> FloatArray:
    return np.array([1.0, step.computed, step.generated])


def sample_rows(index: RowIndex, most: int) -> list[DataRow]:
    """At most so many rows, and one in SHARE, evenly spread over those that can be run."""
    total = index.count(None)
    count = max(1, min(most, total // SHARE))
    places = {number * total // count for number in range(count)}
    return [row for place, row in enumerate(index.pending()) if place in places]


def calibrate(
    generator: Generator,
    rows: Sequence[DataRow],
    params: DecodingParams,
    max_batched_tokens: int,
    longest: float = LONGEST,
    date: str | None = None,
    clock: Clock = time.perf_counter,
) -> Calibration:
    """Runs the rows for at most `longest` seconds, and times each step. date: see `Prompt`.

    Raises:
        ConfigError: none of the rows could be run.
    """
    buckets = buckets_up_to(max_batched_tokens)
    shapes: set[tuple[int, bool]] = set()
    steps: list[StepTime] = []
    lengths: list[int] = []
    unfinished: Counter[tuple[str, int]] = Counter()
    begun = before = clock()
    last = generator.statistics
    asked = ((row.prompt(date), row.params(params)) for row in rows)
    with closing(generator.steps(asked)) as results:
        for result in results:
            now, statistics = clock(), generator.statistics
            computed = statistics.computed_tokens - last.computed_tokens
            generated = statistics.generated_tokens - last.generated_tokens
            if computed:
                shape = pad_to_bucket(computed, buckets), computed == generated
                steps.append(StepTime(now - before, computed, generated, shape not in shapes))
                shapes.add(shape)
            for event in result.events:
                unfinished[event.key, event.index] += len(event.token_ids)
            for row in result.finished:
                lengths += [len(output.token_ids) for output in row.outputs]
                for index in range(len(row.outputs)):
                    unfinished.pop((row.key, index), None)
            before, last = clock(), statistics
            if before - begun > longest:
                break
    if not any(step.generated for step in steps):
        raise ConfigError("calibrate=true: none of the rows that were tried could be run")
    open_lengths = list(unfinished.values())
    return Calibration(steps, lengths, open_lengths, last.prompt_tokens, last.cached_prompt_tokens)


def steps_for(lengths: Sequence[int], batch_size: int) -> float:
    """Steps until sequences of these lengths have all ended, `batch_size` at a time, in their order."""
    if len(lengths) > MOST_SIMULATED:
        return sum(lengths) / batch_size
    ends = [0] * batch_size
    heapify(ends)
    for length in lengths:
        heapreplace(ends, ends[0] + length)
    return max(ends)
