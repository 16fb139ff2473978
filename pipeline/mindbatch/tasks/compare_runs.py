"""Running the strategies of `mindbatch compare` one after the other, each timed by itself."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from mindbatch.batch.moving_bar import MovingBar
from mindbatch.data.prompts import Prompt, PromptRows
from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import RequestOutput
from mindbatch.evaluation.comparison import StrategyRun
from mindbatch.llm import LLM


def run_strategies(
    llm: LLM, strategies: Mapping[str, DecodingParams], rows: PromptRows, warm_up_prompts: int
) -> list[StrategyRun]:
    """Each strategy's results for all rows, in their order, and what it took.

    warm_up_prompts: every strategy runs so many of the rows before any is timed. The same rows take the same
    steps again, so that the graphs that these need are there already.
    """
    total = len(strategies) * (len(rows.prompts) + warm_up_prompts)
    runs, ended = [], 0
    with MovingBar("comparing", Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        for name, params in strategies.items():
            for _ in _results(llm, params, rows.prompts[:warm_up_prompts]):
                ended += 1
                bar.set(ended, total, f"{name}, warming up")
        for name, params in strategies.items():
            started, results = time.perf_counter(), _refused(rows)
            for result in _results(llm, params, rows.prompts):
                results.append(result)
                ended += 1
                bar.set(ended, total, name)
            seconds = time.perf_counter() - started
            runs.append(StrategyRun(name, params, sorted(results, key=_position), seconds))
    return runs


def _results(llm: LLM, params: DecodingParams, prompts: Sequence[Prompt]) -> Iterator[RequestOutput]:
    """The results as they finish, those with an error too."""
    for step in llm.steps((prompt, params) for prompt in prompts):
        yield from step.finished


def _refused(rows: PromptRows) -> list[RequestOutput]:
    """Results for the rows that are no prompts."""
    return [RequestOutput.failed(row.key, f"{row.source}: {row.reason}") for row in rows.errors]


def _position(result: RequestOutput) -> int:
    return int(result.key)
