"""Engines over a loaded model that write down the logits after every prefix they compute."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch import LLM, DecodingParams, RequestOutput
from mindbatch.engine.engine import Engine
from mindbatch.engine.request import Request
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import StageRunner, Step, StepOutput
from mindbatch.engine.step_graphs import StepGraphs

Prefix = tuple[int, ...]
Logits = dict[Prefix, NDArray[np.float32]]
MAX_BATCHED_TOKENS = 16


def load(folder: Path, *, first_buckets: Sequence[int] = (1,), **options: Any) -> LLM:
    """A model with few graphs to compile: steps are padded to `first_buckets` or to max_batched_tokens."""
    sizes: dict[str, Any] = {"batch_size": 16, "max_batched_tokens": MAX_BATCHED_TOKENS}
    sizes |= {"cache_memory": "8MiB"} | options
    llm = LLM(folder, **sizes)
    pad_steps(llm._model.engine._runner, [*first_buckets, sizes["max_batched_tokens"]])
    return llm


def pad_steps(runner: Any, sizes: Sequence[int]) -> None:
    """Steps are padded to one of these sizes, each with graphs of its own. Recorded steps are not padded."""
    if isinstance(runner._network, StepGraphs):
        assert runner._network._buckets
        runner._network._buckets = [*sizes]


class Recorder:
    """A runner that keeps the logits of every token; a prefix computed again must give the same."""

    def __init__(self, runner: StageRunner, tolerance: float) -> None:
        self.vocab_size = runner.vocab_size
        self.logits: Logits = {}
        self._runner = runner
        self._tolerance = tolerance

    def run(self, step: Step) -> StepOutput:
        everything = replace(self._runner.announce(step), wanted=None)
        output = self._runner.complete(everything)
        rows = iter(output.logits(range(step.num_tokens)))
        for tokens in step.scheduled:
            prefix = tokens.sequence.tokens(0, tokens.stop)
            for end in range(tokens.start + 1, tokens.stop + 1):
                self._keep(tuple(prefix[:end]), next(rows))
        return output

    def _keep(self, prefix: Prefix, logits: NDArray[np.float32]) -> None:
        known = self.logits.setdefault(prefix, logits)
        assert gap(known, logits) <= self._tolerance, f"another result for {prefix}"


class Run:
    """What one engine made of some prompts."""

    def __init__(
        self,
        llm: LLM,
        prompts: Sequence[Sequence[int]],
        params: DecodingParams,
        *,
        first: int = 0,
        order: Sequence[int] | None = None,
        tolerance: float = 1e-5,
        **limits: Any,
    ) -> None:
        """`limits` change the engine's settings; `first` numbers the prompts, which fixes their draws; they
        are added in `order`."""
        self.llm = llm
        engine = llm._model.engine
        settings: EngineSettings = replace(engine.settings, **limits)
        recorder = Recorder(engine._runner, tolerance)
        self.engine = Engine(recorder, settings)
        for place in range(len(prompts)) if order is None else order:
            self.engine.add(Request(str(first + place), tuple(prompts[place]), params))
        done: dict[str, RequestOutput] = {}
        while self.engine.has_work:
            done |= {output.key: output for output in self.engine.step().finished}
        self.results = [done[key] for key in sorted(done, key=int)]
        self.logits = recorder.logits

    @property
    def tokens(self) -> list[list[int]]:
        """The output tokens of every sample of every prompt."""
        return [output.token_ids for result in self.results for output in result.outputs]

    @property
    def num_preemptions(self) -> int:
        return self.engine.scheduler.num_preemptions


def gap(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """The largest difference, in units of the largest logit if that is above 1: float32 keeps 7 digits."""
    return float(np.abs(one - other).max() / max(1.0, np.abs(one).max()))


def difference(one: Logits, other: Logits) -> float:
    """The largest gap between logits after the same prefix."""
    shared = one.keys() & other.keys()
    assert shared
    return max(gap(one[prefix], other[prefix]) for prefix in shared)


def equal(one: Run, other: Run, tolerance: float) -> None:
    """Both ran the same prompts to the same results."""
    assert one.tokens == other.tokens
    assert one.logits.keys() == other.logits.keys()
    assert difference(one.logits, other.logits) <= tolerance
    for mine, theirs in zip(one.results, other.results, strict=True):
        for a, b in zip(mine.outputs, theirs.outputs, strict=True):
            assert abs(a.cumulative_logprob - b.cumulative_logprob) <= 10 * tolerance * len(a.token_ids)
