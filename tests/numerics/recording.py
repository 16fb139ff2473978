"""Engines over a loaded model that write down the logits after the prefixes they compute."""

import sys
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
    if "mindspore" not in sys.modules:  # only its graphs are padded
        return
    from mindbatch.engine.step_graphs import StepGraphs

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


class LastRecorder(Recorder):
    """Runs steps as they are and keeps only the logits from which tokens were chosen."""

    def run(self, step: Step) -> StepOutput:
        output, end = self._runner.run(step), 0
        for tokens in step.scheduled:
            end += tokens.stop - tokens.start
            if tokens.num_logits:
                self.logits[tuple(tokens.sequence.tokens(0, tokens.stop))] = output.logits([end - 1])[0]
        return output


class Run:
    """What one engine made of some prompts.

    params, adapter: of all prompts, or of each. first: numbers the prompts, which fixes their draws.
    order: in which they are added. limits: change the engine's settings.
    """

    recorder: type[Recorder] = Recorder

    def __init__(
        self,
        llm: LLM,
        prompts: Sequence[Sequence[int]],
        params: DecodingParams | Sequence[DecodingParams],
        *,
        adapter: str | Sequence[str | None] | None = None,
        first: int = 0,
        order: Sequence[int] | None = None,
        tolerance: float = 1e-5,
        **limits: Any,
    ) -> None:
        self.llm = llm
        engine = llm._model.engine
        settings: EngineSettings = replace(engine.settings, **limits)
        recorder = self.recorder(engine._runner, tolerance)
        known, slots = engine._adapters, engine.scheduler.adapters
        self.engine = Engine(recorder, settings, adapters=known, slots=slots)
        for place in range(len(prompts)) if order is None else order:
            asked = params if isinstance(params, DecodingParams) else params[place]
            own = adapter if adapter is None or isinstance(adapter, str) else adapter[place]
            self.engine.add(Request(str(first + place), tuple(prompts[place]), asked, adapter=own))
        done: dict[str, RequestOutput] = {}
        while self.engine.has_work:
            done |= {output.key: output for output in self.engine.step().finished}
        self.results = [done[key] for key in sorted(done, key=int)]
        self.logits = recorder.logits

    @property
    def tokens(self) -> list[list[int]]:
        """The output tokens of every sample of every prompt."""
        return [tokens for outputs in self.outputs for tokens in outputs]

    @property
    def outputs(self) -> list[list[list[int]]]:
        """The same, by prompt."""
        return [[output.token_ids for output in result.outputs] for result in self.results]

    @property
    def num_preemptions(self) -> int:
        return self.engine.scheduler.num_preemptions


class LastRun(Run):
    """A run of steps as they are."""

    recorder = LastRecorder


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
