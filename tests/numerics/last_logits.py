"""Engines over a loaded model that write down the logits from which each token was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch import LLM, DecodingParams
from mindbatch.engine.engine import Engine
from mindbatch.engine.request import Request
from mindbatch.engine.step import StageRunner, Step, StepOutput


class Logits:
    """A runner that keeps the logits by the tokens that they follow."""

    def __init__(self, runner: StageRunner) -> None:
        self.vocab_size = runner.vocab_size
        self.found: dict[tuple[int, ...], NDArray[np.float32]] = {}
        self._runner = runner

    def run(self, step: Step) -> StepOutput:
        output, end = self._runner.run(step), 0
        for tokens in step.scheduled:
            end += tokens.stop - tokens.start
            if tokens.num_logits:
                self.found[tuple(tokens.sequence.tokens(0, tokens.stop))] = output.logits([end - 1])[0]
        return output


class Run:
    """What one engine made of some prompts.

    params, adapter: of all prompts, or of each. order: in which they are asked.
    limits: change the engine's settings.
    """

    def __init__(
        self,
        llm: LLM,
        prompts: Sequence[Sequence[int]],
        params: DecodingParams | Sequence[DecodingParams],
        *,
        order: Sequence[int] | None = None,
        adapter: str | Sequence[str | None] | None = None,
        **limits: Any,
    ) -> None:
        its, runner = llm._model.engine, Logits(llm._model.engine._runner)
        known, slots = its._adapters, its.scheduler.adapters
        self.engine = Engine(runner, replace(its.settings, **limits), adapters=known, slots=slots)
        for number in range(len(prompts)) if order is None else order:
            asked = params if isinstance(params, DecodingParams) else params[number]
            own = adapter if adapter is None or isinstance(adapter, str) else adapter[number]
            self.engine.add(Request(str(number), tuple(prompts[number]), asked, adapter=own))
        done = {}
        while self.engine.has_work:
            done |= {output.key: output for output in self.engine.step().finished}
        self.tokens = [[each.token_ids for each in done[str(key)].outputs] for key in range(len(prompts))]
        self.logits = runner.found
