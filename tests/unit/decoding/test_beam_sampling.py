"""Beam sampling against exact chances, and what all beam searches do, alone and in one step."""

import math
from collections import Counter
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest

from goodness_of_fit import assert_distributed, draws
from mindbatch.decoding.filters import sampling_candidates
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import NoTokenLeftError
from mindbatch.io.errors import MindBatchError
from search_play import PROMPT, Search, log_probabilities, random_model, run_together, table_model

Outputs = tuple[tuple[int, ...], ...]


def in_this_order(probabilities: list[float], drawn: tuple[int, ...]) -> float:
    """The chance to draw these first, in this order and without replacement."""
    chance, left = 1.0, sum(probabilities)
    for place in drawn:
        chance *= probabilities[place] / left
        left -= probabilities[place]
    return chance


def tokens_at(place: int, counts: Counter[Outputs]) -> Counter[Any]:
    """The same with each output reduced to its token at `place`: whole outputs are too many to be common."""
    reduced: Counter[Any] = Counter()
    for outputs, count in counts.items():
        reduced[tuple(tokens[place] for tokens in outputs)] += count
    return reduced


def run_many(model: Any, times: int, **params: Any) -> list[Search]:
    searches = [
        Search(model, key=str(number), num_beams=2, do_sample=True, **params) for number in range(times)
    ]
    run_together(searches)
    return searches


class TestDistribution:
    def test_outputs_of_one_token(self) -> None:
        # Two beams draw four candidates; at the length limit the first two end.
        chances = [0.4, 0.25, 0.2, 0.1, 0.05]
        model = table_model({(): dict(enumerate(chances))}, 5)
        searches = run_many(
            model, draws(600, thorough=6000), eos=(), max_new_tokens=1, num_return_sequences=2
        )
        pairs = Counter(
            tuple(hypothesis.token_ids[0] for hypothesis in search.results or ()) for search in searches
        )
        expected = {
            pair: sum(in_this_order(chances, order) for order in permutations(pair))
            for pair in combinations(range(5), 2)
        }
        assert_distributed(pairs, expected)  # best first, which here is the lower token

    def test_outputs_of_two_tokens(self) -> None:
        # Four of five tokens are drawn and the better two live on; then the first two of the pairs end.
        model = random_model(5, seed=3, spread=0.8)
        first = np.exp(log_probabilities(model(PROMPT))).tolist()
        expected: Counter[Outputs] = Counter()
        for drawn in permutations(range(5), 4):
            live = sorted(drawn, key=lambda token: -first[token])[:2]
            pairs = [(token, after) for token in live for after in range(5)]
            chances = [
                first[token] * float(np.exp(log_probabilities(model((*PROMPT, token))))[after])
                for token, after in pairs
            ]
            for order in permutations(range(10), 2):
                ranked = sorted(order, key=lambda place: -chances[place])
                chance = in_this_order(first, drawn) * in_this_order(chances, order)
                expected[tuple(pairs[place] for place in ranked)] += chance
        searches = run_many(
            model, draws(500, thorough=5000), eos=(), max_new_tokens=2, num_return_sequences=2
        )
        counts: Counter[Outputs] = Counter(
            tuple(each.token_ids for each in search.results or ()) for search in searches
        )
        for place in (0, 1):
            assert_distributed(tokens_at(place, counts), dict(tokens_at(place, expected)))

    def test_only_what_is_drawn_first_may_end(self) -> None:
        # Three of four candidates are end tokens. Those drawn first end, which may be neither of the best.
        chances = [0.5, 0.3, 0.15, 0.05]
        model = table_model({(): dict(enumerate(chances)), (3,): {3: 1.0}}, 4)
        searches = [
            Search(model, key=str(number), eos=(0, 1, 2), num_beams=2, do_sample=True, num_return_sequences=2)
            for number in range(draws(300, thorough=3000))
        ]
        for search in searches:
            search.step()
        ended = Counter(
            tuple(hypothesis.token_ids[0] for hypothesis in search.results or search.decisions[0].kept)
            for search in searches
        )
        expected: Counter[tuple[int, ...]] = Counter()
        for order in permutations(range(4), 2):
            expected[tuple(sorted(set(order) - {3}))] += in_this_order(chances, order)
        assert_distributed(ended, dict(expected))

    def test_another_seed_and_another_key_draw_anew(self) -> None:
        model = random_model(300)

        def tokens(**setting: Any) -> Any:
            return Search(model, num_beams=2, do_sample=True, max_new_tokens=6, **setting).run()[0].token_ids

        assert tokens(seed=1) == tokens(seed=1)
        assert tokens(seed=1) != tokens(seed=2)
        assert tokens(seed=1) != tokens(seed=1, key="another")


class TestScores:
    @pytest.mark.parametrize(
        "setting",
        [
            {},
            {"temperature": 1.7},
            {"temperature": 0.6, "top_k": 5},
            {"top_p": 0.5, "repetition_penalty": 1.3},
            {"min_p": 0.1, "renormalize_logits": True},
        ],
    )
    def test_a_score_is_the_sum_of_filtered_scores_by_length(self, setting: dict[str, Any]) -> None:
        model = random_model(50, seed=6)
        params = {"num_beams": 3, "do_sample": True, "max_new_tokens": 6, "length_penalty": 0.5, **setting}
        results = Search(model, num_return_sequences=3, **params).run()
        assert len(results) == 3
        for output in results:
            row = Search(model, **params).rows[0]
            total = 0.0
            for token in output.token_ids:
                raw = log_probabilities(model((*PROMPT, *row.output_token_ids))).astype(np.float32)
                scores = sampling_candidates(adjust(raw, row), row.params, least=2).dense(50)
                if "renormalize_logits" in setting:
                    scores = log_probabilities(scores).astype(np.float32)
                total += float(scores[token])
                row.output_token_ids.append(token)
            assert output.score == pytest.approx(total / len(output.token_ids) ** 0.5, abs=1e-4)

    def test_live_rows_are_ordered_by_score_and_not_by_draw(self) -> None:
        for seed in range(20):
            search = Search(random_model(50, seed), num_beams=4, do_sample=True, max_new_tokens=9, seed=seed)
            totals = [0.0]
            for _ in range(3):
                raw = [log_probabilities(scores) for scores in search.logits()]
                decision = search.step()
                totals = [
                    totals[each.parent] + float(raw[each.parent][each.choices[0].token_id])
                    for each in decision.branches
                ]
                assert totals == sorted(totals, reverse=True)
                assert [each.sample_index for each in decision.branches] == [0, 1, 2, 3]


class TestFewCandidates:
    def test_filters_leave_as_many_as_there_are_end_tokens_and_one_more(self) -> None:
        # With top_k=1 the end token alone would be left, and no beam could go on.
        model = table_model({(): {0: 0.9, 1: 0.07, 2: 0.03}}, 3)
        search = Search(model, num_beams=2, do_sample=True, top_k=1, early_stopping="never")
        decision = search.step()
        assert [branch.choices[0].token_id for branch in decision.branches] == [1]
        assert [kept.token_ids for kept in decision.kept] == [(0,)]

    def test_fewer_tokens_than_draws(self) -> None:
        search = Search(random_model(3), eos=(), num_beams=8, do_sample=True, max_new_tokens=1)
        [output] = search.run()
        assert math.isfinite(output.score or 0)


BEAMS: list[dict[str, Any]] = [
    {"num_beams": 2},
    {"num_beams": 7, "length_penalty": 0.3, "num_return_sequences": 3},
    {"num_beams": 4, "early_stopping": "never", "logprobs": 3},
    {"num_beams": 3, "repetition_penalty": 1.3, "early_stopping": True},
    {"num_beams": 4, "no_repeat_ngram_size": 2, "eos": (0, 5, 9)},
    {"num_beams": 5, "min_new_tokens": 3},
]
SAMPLED: list[dict[str, Any]] = [
    {"do_sample": True, **setting}
    for setting in (
        {"num_beams": 2},
        {"num_beams": 5, "length_penalty": 0.3, "num_return_sequences": 3, "logprobs": 2},
        {"num_beams": 4, "early_stopping": "never", "top_k": 20},
        {"num_beams": 3, "repetition_penalty": 1.3, "top_p": 0.8, "early_stopping": True},
        {"num_beams": 4, "eos": (0, 5, 9), "temperature": 1.5},
    )
]
GROUPS: list[dict[str, Any]] = [
    {"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 0.3},
    {
        "num_beams": 6,
        "num_beam_groups": 3,
        "diversity_penalty": 1.3,
        "num_return_sequences": 3,
        "logprobs": 2,
    },
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 2.3, "early_stopping": "never"},
    {"num_beams": 6, "num_beam_groups": 2, "diversity_penalty": 3.3, "repetition_penalty": 1.3},
    {"num_beams": 4, "num_beam_groups": 4, "diversity_penalty": 4.3, "eos": (0, 5, 9)},
]

each_search = pytest.mark.parametrize(
    "settings", [BEAMS, SAMPLED, GROUPS], ids=["beams", "sampled", "groups"]
)


def searches(settings: list[dict[str, Any]]) -> list[Search]:
    return [
        Search(random_model(5000, seed, eager=[0]), key=str(seed), max_new_tokens=5 + seed, **setting)
        for seed, setting in enumerate(settings)
    ]


@each_search
def test_each_gets_bit_for_bit_what_it_gets_alone(settings: list[dict[str, Any]]) -> None:
    together, alone = searches(settings), searches(settings)
    run_together(together)
    for one, other in zip(together, alone, strict=True):
        other.run()
        assert one.decisions == other.decisions


@each_search
def test_logits_are_not_changed(settings: list[dict[str, Any]]) -> None:
    running = searches(settings)
    logits = np.concatenate([search.logits() for search in running])
    before = logits.copy()
    running[0].strategy.advance([search.view() for search in running], logits)
    assert np.array_equal(logits, before)


@each_search
def test_logits_that_are_not_numbers_are_refused(settings: list[dict[str, Any]]) -> None:
    search = searches(settings)[0]
    logits = search.logits()
    logits[0, 3] = np.nan
    with pytest.raises(MindBatchError, match="NaN"):
        search.strategy.advance([search.view()], logits)


KINDS: dict[str, dict[str, Any]] = {
    "beams": {},
    "sampled": {"do_sample": True},
    "groups": {"num_beam_groups": 2, "diversity_penalty": 2.0},
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@each_kind
def test_a_row_in_a_dead_end_is_dropped(kind: dict[str, Any]) -> None:
    bad = [[1, token] for token in range(3)]
    model = table_model({(): {1: 0.6, 2: 0.4}, (1,): {1: 1.0}, (2,): {2: 1.0}}, 3)
    search = Search(model, num_beams=2, max_new_tokens=2, bad_words_ids=bad, **kind)
    assert [output.token_ids for output in search.run()] == [(2, 2)]


@each_kind
def test_a_search_without_any_way_on_is_an_error(kind: dict[str, Any]) -> None:
    search = Search(random_model(3), num_beams=2, suppress_tokens=(0, 1, 2), **kind)
    with pytest.raises(NoTokenLeftError, match="suppress_tokens"):
        search.step()


@pytest.mark.parametrize(
    ("size", "kind"),
    [(6, {"num_beams": 4}), (20, {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.5})],
)
def test_what_may_still_be_returned_is_kept(size: int, kind: dict[str, Any]) -> None:
    for seed in range(20):
        search = Search(random_model(size, seed, eager=[0]), num_return_sequences=2, max_new_tokens=6, **kind)
        results = search.run()
        before: list[Any] = []
        for decision in search.decisions[:-1]:
            assert len(decision.kept) <= 2
            assert all(kept in decision.kept or kept not in results for kept in before)
            before = list(decision.kept)
        ended_before = [output for output in results if len(output.token_ids) < len(search.decisions)]
        assert all(output in before for output in ended_before)
        assert not search.decisions[-1].branches
        assert list(results) == sorted(results, key=lambda output: -(output.score or 0))
        assert len(results) == 2
