"""Strategies that fork and drop sequences at any step, as beam search will: the engine keeps them apart."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from shadow_model import VOCABULARY, drain, make_engine, request, settings, text_of

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.row import TokenChoice, top_logprobs
from mindbatch.decoding.strategy import Branch, Decision, GroupView

WIDTH = 4


class Wandering:
    """Keeps WIDTH sequences; at each step one gets another parent, which forks while it is dropped."""

    searches = False
    needs_hidden = False

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def width(self, params: DecodingParams) -> int:
        return WIDTH

    def begin(self, params: DecodingParams) -> None:
        return None

    def advance(self, groups: Sequence[GroupView], logits: NDArray[np.float32]) -> list[Decision]:
        assert len(logits) == sum(len(group.rows) for group in groups)
        return [Decision(self._branches(group, logits)) for group in groups]

    def _branches(self, group: GroupView, logits: NDArray[np.float32]) -> list[Branch]:
        parents = [place % len(group.rows) for place in range(WIDTH)]
        parents[self.random.integers(WIDTH)] = int(self.random.integers(len(group.rows)))
        tokens = self.random.integers(0, VOCABULARY, WIDTH).tolist()
        return [
            Branch(parent, index, (TokenChoice(token, -1.0, top_logprobs(logits[0], 0.0, token, 1)),))
            for index, (parent, token) in enumerate(zip(parents, tokens, strict=True))
        ]


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("use_past", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_wandering_sequences_stay_apart(seed: int, use_past: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = Wandering(seed)
    monkeypatch.setattr("mindbatch.engine.engine.strategy_for", lambda params: strategy)
    limits = settings(block_size=2, num_blocks=44, max_batched_tokens=16, batch_size=12, use_past=use_past)
    engine = make_engine(limits)
    sampling = {"do_sample": True, "num_return_sequences": WIDTH}
    for index in range(4):
        engine.add(
            request(str(index), [index, 1, 2, 3, 4, 5, 6, 7, 8][: index + 6], max_new_tokens=12, **sampling)
        )
    results, _ = drain(engine)
    assert engine.scheduler.num_preemptions > 0
    assert len(results) == 4
    for result in results.values():
        assert result.outputs
        for output in result.outputs:
            assert output.text == text_of(output.token_ids)
            assert output.cumulative_logprob == -len(output.token_ids)
            assert output.logprobs is not None
            assert len(output.logprobs) == len(output.token_ids)
            assert all(
                token in scores for token, scores in zip(output.token_ids, output.logprobs, strict=True)
            )


class Ending(Wandering):
    """Gives no branch at all from the third step on."""

    def width(self, params: DecodingParams) -> int:
        return 1

    def _branches(self, group: GroupView, logits: NDArray[np.float32]) -> list[Branch]:
        return [Branch(0, 0, (TokenChoice(1, -1.0),))] if group.rows[0].step < 2 else []


def test_a_group_without_branches_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindbatch.engine.engine.strategy_for", lambda params: Ending(0))
    engine = make_engine(settings())
    engine.add(request("row", [1, 2], max_new_tokens=9))
    results, events = drain(engine)
    assert results["row"].outputs == []
    assert len(events) == 2
