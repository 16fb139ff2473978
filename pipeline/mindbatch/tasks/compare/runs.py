"""Running the strategies of `mindbatch compare` one after the other, each timed by itself."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from rich.console import Console

from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import RequestOutput
from mindbatch.io.moving_bar import MovingBar
from mindbatch.io.screen_text import say
from mindbatch.llm import LLM
from mindbatch.prompts.prompts import Prompt, PromptRows

MOST_TIMINGS = 3
LONGEST_ROUND = 60.0
"""Seconds of a round of all strategies beyond which it is not repeated to be timed, unless asked for."""


@dataclass(frozen=True)
class StrategyRun:
    """One strategy's results, in the order of the prompts, and the seconds of each time it ran them all."""

    name: str
    params: DecodingParams
    results: Sequence[RequestOutput]
    timings: Sequence[float]


def run_strategies(
    llm: LLM,
    strategies: Mapping[str, DecodingParams],
    rows: PromptRows,
    warm_up_prompts: int,
    timings: int | None = 1,
) -> list[StrategyRun]:
    """Each strategy's results for all rows, in their order, and the seconds of each time that it ran them.

    warm_up_prompts: every strategy runs so many of the rows before any is timed. The same rows take the same
    steps again, so that the graphs that these need are there already.
    timings: rounds in which each strategy runs all rows; None is MOST_TIMINGS, but one of a long round.
    """
    rounds = MOST_TIMINGS if timings is None else timings
    total = len(strategies) * (rounds * len(rows.prompts) + warm_up_prompts)
    seconds: dict[str, list[float]] = {name: [] for name in strategies}
    results: dict[str, list[RequestOutput]] = {}
    notes: list[str] = []
    refused = [RequestOutput.failed(row.key, row.fault) for row in rows.errors]
    with MovingBar("comparing", Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        ended = count(1)

        def run(name: str, prompts: Sequence[Prompt], note: str = "") -> list[RequestOutput]:
            finished = []
            for result in _results(llm, strategies[name], prompts):
                finished.append(result)
                bar.set(next(ended), total, f"{name}{note}")
            notes[:] = llm.take_notes()
            return finished

        for name in strategies:
            run(name, rows.prompts[:warm_up_prompts], ", warming up")
        for _ in range(rounds):
            for name in strategies:
                started = time.perf_counter()
                finished = run(name, rows.prompts)
                seconds[name].append(time.perf_counter() - started)
                results[name] = sorted(finished + refused, key=lambda result: int(result.key))
            if timings is None and sum(map(sum, seconds.values())) > LONGEST_ROUND:
                break
    say(*notes)
    return [StrategyRun(name, params, results[name], seconds[name]) for name, params in strategies.items()]


def _results(llm: LLM, params: DecodingParams, prompts: Sequence[Prompt]) -> Iterator[RequestOutput]:
    """The results as they finish, those with an error too."""
    for step in llm.steps((prompt, params) for prompt in prompts):
        yield from step.finished
