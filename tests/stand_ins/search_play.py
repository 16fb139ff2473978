"""Plays the engine for strategies that search: a model given as a function, and rows grown by decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.draws import row_hash
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import FinishReason, Row
from mindbatch.decoding.strategy import Decision, GroupView, Hypothesis

Model = Callable[[Sequence[int]], NDArray[np.float32]]
"""Logits [V] after the tokens of prompt and output."""
PROMPT = (1,)


def random_model(size: int, seed: int = 0, spread: float = 2.0, eager: Sequence[int] = ()) -> Model:
    """Logits that depend on every token before; `eager` tokens are likelier than others."""

    def logits(tokens: Sequence[int]) -> NDArray[np.float32]:
        drawn = np.random.default_rng([seed, *tokens]).standard_normal(size) * spread
        drawn[list(eager)] += spread
        return drawn.astype(np.float32)

    return logits


def table_model(table: dict[tuple[int, ...], dict[int, float]], size: int) -> Model:
    """Probabilities of tokens by the output so far; tokens not named are impossible."""

    def logits(tokens: Sequence[int]) -> NDArray[np.float32]:
        scores = np.full(size, -np.inf, dtype=np.float32)
        for token, probability in table[tuple(tokens[len(PROMPT) :])].items():
            scores[token] = np.log(probability)
        return scores

    return logits


def log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """In float64, from first principles."""
    exact = logits.astype(np.float64)
    exact -= exact.max()
    normalised: NDArray[np.float64] = exact - np.log(np.exp(exact).sum())
    return normalised


class Search:
    """A request of the prompt PROMPT; token 0 ends it unless `eos` names others."""

    def __init__(
        self,
        model: Model,
        *,
        key: str = "request",
        eos: tuple[int, ...] = (0,),
        stops: Sequence[tuple[int, ...]] = (),
        **params: Any,
    ) -> None:
        """`stops` are outputs that end as at a stop string."""
        self.params = DecodingParams(**params)
        self.strategy = strategy_for(self.params)
        self.state = self.strategy.begin(self.params)
        self.model, self.eos, self.stops = model, eos, stops
        self.max_tokens = self.params.max_total_tokens(len(PROMPT), 10_000)
        self.rows = [Row(self.params, PROMPT, [], eos, row_hash(key), key=key, max_tokens=self.max_tokens)]
        self.decisions: list[Decision] = []

    @property
    def results(self) -> Sequence[Hypothesis] | None:
        """What the search returned; None while it runs."""
        return self.decisions[-1].results if self.decisions else None

    def view(self) -> GroupView:
        """What the strategy sees."""
        return GroupView(list(self.rows), self.ending, self.state)

    def ending(self, parent: int, token: int) -> FinishReason | None:
        """Why the row would end with the token."""
        output = (*self.rows[parent].output_token_ids, token)
        if token in self.eos or output in self.stops:
            return "stop"
        return "length" if len(PROMPT) + len(output) >= self.max_tokens else None

    def logits(self) -> NDArray[np.float32]:
        """[rows, V]."""
        return np.stack([self.model((*PROMPT, *row.output_token_ids)) for row in self.rows])

    def grow(self, decision: Decision) -> None:
        """Carries a decision out."""
        grown = []
        for branch in decision.branches:
            row = self.rows[branch.parent].fork()
            row.sample_index = branch.sample_index
            for choice in branch.choices:
                row.append(choice)
            grown.append(row)
        self.rows = grown
        self.decisions.append(decision)

    def step(self) -> Decision:
        """One step of this search alone."""
        [decision] = self.strategy.advance([self.view()], self.logits())
        if decision.error is not None:
            raise decision.error
        self.grow(decision)
        return decision

    def run(self) -> Sequence[Hypothesis]:
        """To the end, alone."""
        while self.results is None:
            self.step()
        return self.results


def run_together(searches: Sequence[Search]) -> None:
    """To the end of all, those with one strategy in one call."""
    while running := [search for search in searches if search.results is None]:
        for strategy in {id(search.strategy): search.strategy for search in running}.values():
            part = [search for search in running if search.strategy is strategy]
            logits = np.concatenate([search.logits() for search in part])
            decisions = strategy.advance([search.view() for search in part], logits)
            for search, decision in zip(part, decisions, strict=True):
                search.grow(decision)


def total_logprob(model: Model, token_ids: Sequence[int]) -> float:
    """Of an output, recomputed."""
    steps = [
        log_probabilities(model((*PROMPT, *token_ids[:place])))[token]
        for place, token in enumerate(token_ids)
    ]
    return float(sum(steps))
