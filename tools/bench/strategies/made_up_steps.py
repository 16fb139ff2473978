"""Requests that a strategy advances without a model: made-up logits in, its branches carried out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.draws import row_hash
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import Draft, Row
from mindbatch.decoding.strategy import Decision, GroupView
from mindbatch.kernels.native_weights import PANEL

Logits = NDArray[np.float32]
PROMPT, HIDDEN = 128, 768


def peaked_logits(rows: int, vocabulary: int, seed: int) -> Logits:
    """Like a language model's: -1.6 log(rank) and normal noise, the ranks in another order for each row."""
    generator = np.random.default_rng(seed)
    falling = (-1.6 * np.log(np.arange(1, vocabulary + 1))).astype(np.float32)
    noise = generator.standard_normal((rows, vocabulary), np.float32)
    return np.stack([generator.permutation(falling) + part for part in noise])


def flat_logits(rows: int, vocabulary: int, seed: int) -> Logits:
    """Draws logits of an untrained model: standard normal, so that top_p=0.9 keeps 60% of the tokens."""
    return np.random.default_rng(seed).standard_normal((rows, vocabulary), np.float32)


def summary_of(logits: Logits) -> Logits:
    """Summarises logits [S, V] as a head does; csrc/summary.h describes it."""
    padding = -logits.shape[1] % PANEL
    panels = np.pad(logits, ((0, 0), (0, padding)), constant_values=-np.inf).reshape(len(logits), -1, PANEL)
    largest = panels.max(axis=2)
    return np.stack([largest, np.exp(panels - largest[..., np.newaxis]).sum(axis=2)], axis=1)


@dataclass(slots=True)
class Live:
    """One request between steps."""

    rows: list[Row]
    state: Any
    fresh: bool = True


@dataclass(slots=True)
class Batch:
    """`count` requests with the same parameters, each begun anew when its search is over.

    pool: [n, V], of which each step takes the next rows. summaries: of these rows.
    drafted: tokens drafted for each row, the likeliest ones, so that all of them are verified.
    clock: seconds.
    """

    params: DecodingParams
    count: int
    pool: Logits
    summaries: Logits
    drafted: int = 0
    clock: Callable[[], float] = time.perf_counter
    requests: list[Live] = field(default_factory=list)
    _generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    _next: int = 0

    def __post_init__(self) -> None:
        self.requests = [self._begun(number) for number in range(self.count)]

    def step(self) -> float:
        """Seconds that the strategy took for a step of all requests."""
        rows = self._take_rows()
        views = [self._view(request) for request in self.requests]
        strategy = strategy_for(self.params)
        started = self.clock()
        decisions = strategy.advance(views, self.pool[rows], self.summaries[rows])
        seconds = self.clock() - started
        for number, decision in enumerate(decisions):
            self._apply(number, decision)
        return seconds

    def _begun(self, number: int) -> Live:
        vocabulary = self.pool.shape[1]
        prompt = self._generator.integers(0, vocabulary, PROMPT).tolist()
        row = Row(self.params, prompt, [], (vocabulary - 1,), row_hash(str(number)), key=str(number))
        return Live([row], strategy_for(self.params).begin(self.params))

    def _view(self, request: Live) -> GroupView:
        if not strategy_for(self.params).needs_hidden:
            return GroupView(request.rows, state=request.state)
        prompt = self._hidden(PROMPT) if request.fresh else None
        return GroupView(
            request.rows, state=request.state, hidden=self._hidden(len(request.rows)), prompt_hidden=prompt
        )

    def _hidden(self, count: int) -> NDArray[np.float32]:
        return self._generator.standard_normal((count, HIDDEN), np.float32)

    def _take_rows(self) -> slice:
        """The next rows of the pool; drafts are made to agree with them."""
        rows = [row for request in self.requests for row in request.rows]
        ahead = [self.drafted if row.step else 0 for row in rows]
        needed = len(rows) + sum(ahead)
        first = self._next if self._next + needed <= len(self.pool) else 0
        self._next = first + needed
        for row, count in zip(rows, ahead, strict=True):
            if count:
                row.draft = Draft(tuple(self.pool[first : first + count].argmax(axis=1).tolist()))
            first += count + 1
        return slice(self._next - needed, self._next)

    def _apply(self, number: int, decision: Decision) -> None:
        if decision.error is not None:
            raise decision.error
        if decision.results is not None:
            self.requests[number] = self._begun(number)
            return
        request = self.requests[number]
        parents = [request.rows[branch.parent] for branch in decision.branches]
        request.rows = _heirs(parents)
        request.fresh = False
        for row, branch in zip(request.rows, decision.branches, strict=True):
            row.sample_index = branch.sample_index
            row.draft = None
            for choice in branch.choices:
                row.append(choice)


def _heirs(parents: Sequence[Row]) -> list[Row]:
    """A row for each branch: the parent itself for its first, copies for the others."""
    heirs: list[Row] = []
    for parent in parents:
        heirs.append(parent.fork() if any(heir is parent for heir in heirs) else parent)
    return heirs
