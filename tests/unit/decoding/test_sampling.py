"""Strategies of one step: greedy decoding and sampling, alone as in mixed batches, and embeddings."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.draws import row_hash
from mindbatch.decoding.embedding import Embedding
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import NotFiniteError, Row
from mindbatch.decoding.strategy import Branch, GroupView

SETTINGS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3, "logprobs": 3},
    {"min_new_tokens": 9},
    {"do_sample": True},
    {"do_sample": True, "temperature": 0.7, "seed": 5},
    {"do_sample": True, "top_k": 20, "logprobs": 0},
    {"do_sample": True, "top_p": 0.9, "seed": 2**63},
    {"do_sample": True, "min_p": 0.2, "temperature": 1.5},
    {
        "do_sample": True,
        "top_k": 50,
        "top_p": 0.8,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "min_length": 30,
    },
    {"do_sample": True, "temperature": 0},
]


def row(key: str, output: list[int] | None = None, sample: int = 0, **params: Any) -> Row:
    return Row(DecodingParams(**params), [1, 2, 3], output or [], (0,), row_hash(key), sample, key=key)


def random_logits(rows: int, size: int = 3000, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((rows, size)) * 2).astype(np.float32)


def advance(groups: list[list[Row]], logits: NDArray[np.float32]) -> list[list[Branch]]:
    decisions = strategy_for(DecodingParams()).advance([GroupView(rows) for rows in groups], logits)
    return [list(decision.branches) for decision in decisions]


def mixed_groups() -> list[list[Row]]:
    """A group for each setting with two rows further on, then one for each about to branch."""
    going = [
        [row(f"{number}", [4, 5, 6], sample, **setting) for sample in (0, 1)]
        for number, setting in enumerate(SETTINGS)
    ]
    fresh = [
        [row(f"fresh {number}", **setting, num_return_sequences=3 if setting.get("temperature", 1) else 1)]
        for number, setting in enumerate(SETTINGS)
        if setting.get("do_sample")
    ]
    return going + fresh


class TestMixedBatches:
    @pytest.mark.parametrize("size", [50, 3000])
    def test_a_group_gets_exactly_what_it_gets_alone(self, size: int) -> None:
        groups = mixed_groups()
        logits = random_logits(sum(map(len, groups)), size)
        together = advance(groups, logits)
        start = 0
        for group, branches in zip(groups, together, strict=True):
            assert advance([group], logits[start : start + len(group)].copy()) == [branches]
            start += len(group)

    def test_logits_are_not_changed(self) -> None:
        groups = mixed_groups()
        logits = random_logits(sum(map(len, groups)))
        before = logits.copy()
        advance(groups, logits)
        np.testing.assert_array_equal(logits, before)


class TestGreedy:
    def test_takes_the_lowest_of_equal_tokens(self) -> None:
        logits = np.array([[1, 3, 3, 2]], dtype=np.float32)
        [[branch]] = advance([[row("a")]], logits)
        assert branch.choices[0].token_id == 1
        assert branch.choices[0].top_logprobs is None

    def test_logprobs_are_those_of_the_raw_logits_and_hold_the_chosen_token(self) -> None:
        logits = np.array([[3, 4, 2, 5]], dtype=np.float32)
        [[branch]] = advance(
            [[row("a", repetition_penalty=9.0, logprobs=2)]], logits
        )  # penalises tokens 1, 2 and 3
        assert branch.choices[0].top_logprobs is not None
        assert list(branch.choices[0].top_logprobs) == [3, 1, 0]
        assert branch.choices[0].logprob == pytest.approx(np.log(0.0871), abs=1e-3)
        assert branch.choices[0].top_logprobs[0] == branch.choices[0].logprob


class TestBranching:
    def test_first_step_branches_into_the_samples(self) -> None:
        params: dict[str, Any] = {"do_sample": True, "num_return_sequences": 4}
        [branches] = advance([[row("a", **params)]], random_logits(1))
        assert [(branch.parent, branch.sample_index) for branch in branches] == [(0, n) for n in range(4)]

    @pytest.mark.parametrize("left", [(0, 2), (2,)])
    def test_later_steps_keep_one_branch_a_row(self, left: tuple[int, ...]) -> None:
        params: dict[str, Any] = {"do_sample": True, "num_return_sequences": 3}
        rows = [row("a", [7], sample, **params) for sample in left]
        [branches] = advance([rows], random_logits(len(rows)))
        assert [(branch.parent, branch.sample_index) for branch in branches] == list(enumerate(left))


class TestRandomness:
    def tokens(self, **changed: Any) -> list[int]:
        """200 tokens drawn from one distribution by rows that differ in their key."""
        place: dict[str, Any] = {"seed": 0, "sample": 0, "output": [1], "prefix": "row", **changed}
        rows = [
            [
                row(
                    f"{place['prefix']} {n}",
                    place["output"],
                    place["sample"],
                    do_sample=True,
                    seed=place["seed"],
                )
            ]
            for n in range(200)
        ]
        return [
            branches[0].choices[0].token_id
            for branches in advance(rows, np.zeros((200, 1000), dtype=np.float32))
        ]

    def test_the_same_place_gives_the_same_token(self) -> None:
        assert self.tokens() == self.tokens()

    @pytest.mark.parametrize("changed", [{"seed": 1}, {"sample": 1}, {"output": [1, 1]}, {"prefix": "other"}])
    def test_another_seed_sample_step_or_row_gives_others(self, changed: dict[str, Any]) -> None:
        agreeing = sum(a == b for a, b in zip(self.tokens(), self.tokens(**changed), strict=True))
        assert agreeing < 5  # 0.2 expected

    def test_what_was_said_does_not_matter_but_how_long(self) -> None:
        assert self.tokens(output=[1]) == self.tokens(output=[2])


class TestRefusal:
    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_every_row_that_is_not_finite_is_named(self, bad: float) -> None:
        logits = random_logits(3)
        logits[0, 5] = logits[2, 7] = bad
        with pytest.raises(NotFiniteError) as caught:
            advance([[row("a")], [row("b")], [row("c", [1], 4, do_sample=True)]], logits)
        first, second = caught.value.lines
        assert first.startswith("a: the logits after 0 tokens of output are NaN")
        assert second.startswith("c: the logits after 1 tokens of output are NaN")


HIDDEN = np.asarray([[3, 0, 0], [0, 4, 0], [0, 0, 12]], np.float32)


def decided(pooling: str, hidden: Any) -> Any:
    row = Row(DecodingParams(pooling=pooling), (5, 6, 7), [], (), 0)
    [decision] = Embedding().advance([GroupView([row], prompt_hidden=hidden)], np.zeros((1, 4), np.float32))
    return decision


@pytest.mark.parametrize(
    ("pooling", "vector"),
    [
        ("last", (0, 0, 1)),
        ("mean", (3 / 13, 4 / 13, 12 / 13)),
        ("cls", (1, 0, 0)),
        ("weightedmean", (3 / 37, 8 / 37, 36 / 37)),
    ],
)
def test_the_vector_has_length_one(pooling: str, vector: tuple[float, ...]) -> None:
    [result] = decided(pooling, HIDDEN).results
    assert result.embedding == pytest.approx(vector)
    assert (result.token_ids, result.finish_reason) == ((), "stop")


def test_maxima_are_those_of_each_number() -> None:
    hidden = np.asarray([[3, -1, 0], [0, 4, -5], [-2, 0, 12]], np.float32)
    assert decided("max", hidden).results[0].embedding == pytest.approx((3 / 13, 4 / 13, 12 / 13))


def test_states_of_zero_have_no_direction() -> None:
    assert decided("mean", 0 * HIDDEN).results[0].embedding == (0, 0, 0)


def test_states_that_are_no_numbers_end_the_row() -> None:
    assert isinstance(decided("last", HIDDEN * np.float32(np.nan)).error, NotFiniteError)
