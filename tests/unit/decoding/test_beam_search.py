"""Beam search and groups of beams: exhaustive search, worked examples, definitions, ends and dead ends."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from mindbatch.decoding.processors import adjust
from search_play import (
    PROMPT,
    Model,
    Search,
    log_probabilities,
    random_model,
    table_model,
    total_logprob,
)

# With two beams, the first step finishes (0) with 0.4 and the second (1, 0) with 0.21, which makes it two.
EARLY = {(): {0: 0.4, 1: 0.35, 2: 0.25}, (1,): {0: 0.6, 1: 0.4}}
# Then (2, 2) is live with 0.225: more at its length of 2 than (0) has at 1, and it ends with the next token.
HOPEFUL = EARLY | {(2,): {2: 0.9, 0: 0.1}, (2, 2): {0: 1.0}, (1, 1): {1: 0.5, 2: 0.5}}
# Then (1, 1) is the best with 0.14: less than (0), but it would be more at a length of 5.
DISTANT = EARLY | {
    (2,): {1: 0.5, 2: 0.5},
    (1, 1): {1: 1.0},
    (2, 1): {1: 1.0},
    (1, 1, 1): {0: 1.0},
    (2, 1, 1): {0: 1.0},
}


def every_output(size: int, length: int, eos: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All that end: with an end token, or at the length."""
    for count in range(1, length + 1):
        for tokens in product(range(size), repeat=count):
            if not set(tokens[:-1]) & set(eos) and (tokens[-1] in eos or count == length):
                yield tokens


def tokens_of(search: Search) -> list[tuple[int, ...]]:
    return [hypothesis.token_ids for hypothesis in search.run()]


class TestAgainstExhaustiveSearch:
    @pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.5, 1.0, 2.5])
    @pytest.mark.parametrize("eos", [(), (0,), (0, 2)])
    def test_enough_beams_find_and_rank_every_output(
        self, length_penalty: float, eos: tuple[int, ...]
    ) -> None:
        model = random_model(3, seed=5)
        outputs = list(every_output(3, 4, eos))
        search = Search(
            model,
            eos=eos,
            num_beams=100,
            num_return_sequences=100,
            max_new_tokens=4,
            length_penalty=length_penalty,
        )
        scores = {tokens: total_logprob(model, tokens) / len(tokens) ** length_penalty for tokens in outputs}
        results = search.run()
        assert [output.token_ids for output in results] == sorted(outputs, key=lambda tokens: -scores[tokens])
        assert [output.score for output in results] == pytest.approx(sorted(scores.values(), reverse=True))

    @pytest.mark.slow
    def test_plain_sums_with_never_give_the_likeliest_output(self) -> None:
        for seed in range(20):
            model = random_model(4, seed)
            likeliest = max(every_output(4, 4, (0,)), key=lambda tokens: total_logprob(model, tokens))
            search = Search(model, num_beams=64, max_new_tokens=4, length_penalty=0.0, early_stopping="never")
            assert tokens_of(search) == [likeliest]


class TestWorkedExamples:
    @pytest.mark.parametrize(
        ("table", "params", "expected", "steps"),
        [
            (HOPEFUL, {"early_stopping": True}, [(1, 0), (0,)], 2),
            (HOPEFUL, {"early_stopping": False}, [(2, 2, 0), (1, 0)], 3),
            (DISTANT, {"early_stopping": True}, [(1, 0), (0,)], 2),
            (DISTANT, {"early_stopping": False}, [(1, 0), (0,)], 2),
            (DISTANT, {"early_stopping": "never"}, [(1, 1, 1, 0), (2, 1, 1, 0)], 4),
            (DISTANT, {"early_stopping": "never", "max_new_tokens": 2}, [(1, 0), (0,)], 2),
            # log(0.225) * 2 is above log(0.21) * 2, though log(0.225) * 5 is not; log(0.07) * 3 is below.
            (HOPEFUL, {"early_stopping": "never", "length_penalty": -1.0}, [(0,), (1, 0)], 3),
        ],
    )
    def test_early_stopping_ends_the_search_when_it_says(
        self, table: Any, params: dict[str, Any], expected: list[tuple[int, ...]], steps: int
    ) -> None:
        limits = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 5}
        search = Search(table_model(table, 3), **(limits | params))
        assert tokens_of(search) == expected
        assert len(search.decisions) == steps

    def test_never_knows_the_room_that_the_model_leaves(self) -> None:
        search = Search(table_model(DISTANT, 3), num_beams=2, max_new_tokens=100, early_stopping="never")
        search.rows[0].max_tokens = len(PROMPT) + 2  # log(0.14) / 2 is below log(0.4)
        search.step()
        assert search.step().results is not None


class TestEnds:
    def test_only_the_best_num_beams_candidates_may_end(self) -> None:
        # Of the end tokens with 0.4, 0.3 and 0.2 two are outputs, and yet two beams go on, of 0.06 and 0.04.
        search = Search(
            table_model({(): {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.06, 4: 0.04}}, 5),
            eos=(0, 1, 2),
            num_beams=2,
            num_return_sequences=2,
            early_stopping="never",
        )
        decision = search.step()
        assert [kept.token_ids for kept in decision.kept] == [(0,), (1,)]
        assert [(branch.parent, branch.sample_index) for branch in decision.branches] == [(0, 0), (0, 1)]
        assert [row.output_token_ids for row in search.rows] == [[3], [4]]

    def test_a_stop_string_ends_like_an_end_token(self) -> None:
        stopped = Search(table_model(HOPEFUL, 3), eos=(), stops=[(0,), (1, 0), (2, 2, 0)], num_beams=2)
        assert tokens_of(stopped) == tokens_of(Search(table_model(HOPEFUL, 3), num_beams=2))


class TestFewCandidates:
    def test_a_small_vocabulary_leaves_beams_empty(self) -> None:
        search = Search(random_model(3), eos=(), num_beams=8, num_return_sequences=8, max_new_tokens=2)
        assert len(search.step().branches) == 3
        assert len(search.run()) == 8
        assert len(set(tokens_of(search))) == 8

    def test_fewer_outputs_than_asked_for(self) -> None:
        search = Search(table_model({(): {1: 1.0}, (1,): {0: 1.0}}, 9), num_beams=4, num_return_sequences=4)
        [only] = search.run()
        assert only.token_ids == (1, 0)
        assert only.score == 0

    def test_an_impossible_token_is_never_chosen(self) -> None:
        for seed in range(20):
            possible = random_model(12, seed)

            def logits(tokens: Sequence[int], possible: Model = possible) -> Any:
                scores = possible(tokens)
                scores[3:] = -np.inf
                return scores

            results = Search(logits, num_beams=6, num_return_sequences=6, max_new_tokens=4).run()
            assert all(max(output.token_ids) < 3 and math.isfinite(output.score or 0) for output in results)


PROCESSED: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.4},
    {"no_repeat_ngram_size": 1},
    {"min_new_tokens": 4, "repetition_penalty": 0.8},
    {"renormalize_logits": True, "suppress_tokens": (2, 3)},
    {"sequence_bias": [[[2], 1.5], [[3, 1], -4.0]]},
]


class TestScores:
    @pytest.mark.parametrize("processed", PROCESSED)
    def test_beams_are_the_best_continuations_of_all_rows(self, processed: dict[str, Any]) -> None:
        search = Search(random_model(40, seed=8), eos=(39,), num_beams=5, max_new_tokens=5, **processed)
        totals = [0.0]
        for _ in range(4):
            sums: dict[tuple[int, ...], float] = {}
            for total, row in zip(totals, search.rows, strict=True):
                raw = log_probabilities(search.model((*PROMPT, *row.output_token_ids))).astype(np.float32)
                for token, score in enumerate(adjust(raw, row)):
                    if token != 39:
                        sums[(*row.output_token_ids, token)] = total + float(score)
            best = sorted(sums, key=lambda tokens: -sums[tokens])[:5]
            if search.step().results is not None:
                break
            assert [tuple(row.output_token_ids) for row in search.rows] == best
            totals = [sums[tokens] for tokens in best]

    def test_reported_logprobs_are_the_raw_ones(self) -> None:
        model = random_model(30, seed=4)
        search = Search(model, num_beams=3, max_new_tokens=4, repetition_penalty=1.5, logprobs=2)
        [output] = search.run()
        assert output.logprobs is not None
        assert len(output.logprobs) == len(output.token_ids)
        for place, (token, reported) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
            raw = log_probabilities(model((*PROMPT, *output.token_ids[:place])))
            assert list(reported)[:2] == np.argsort(-raw)[:2].tolist()
            assert reported[token] == pytest.approx(raw[token], abs=1e-5)


def groups_of(model: Model, beams: int, groups: int, penalty: float, **params: Any) -> Search:
    """A search of so many beams in so many groups; all beams are returned unless told otherwise."""
    sizes = {"num_beams": beams, "num_beam_groups": groups, "num_return_sequences": beams}
    return Search(model, diversity_penalty=penalty, **(sizes | params))


def diverse_greedy(
    model: Model, count: int, length: int, penalty: float, **params: Any
) -> list[tuple[tuple[int, ...], float]]:
    """Groups of one beam, straight from the definition: outputs and their sums."""
    rows = [Search(model, **params).rows[0] for _ in range(count)]
    totals = [0.0] * count
    for _ in range(length):
        chosen: list[int] = []
        for number, row in enumerate(rows):
            scores = log_probabilities(model((*PROMPT, *row.output_token_ids)))
            for token in chosen:
                scores[token] -= penalty
            processed = adjust(scores.astype(np.float32), row)
            token = int(processed.argmax())
            totals[number] += float(processed[token])
            row.output_token_ids.append(token)
            chosen.append(token)
    return [(tuple(row.output_token_ids), total) for row, total in zip(rows, totals, strict=True)]


def test_every_beam_of_a_group_counts() -> None:
    table = {(): {1: 0.6, 2: 0.4}, (1,): {3: 0.6, 4: 0.4}, (2,): {3: 0.7, 4: 0.3}}
    # In the first step the second group sees each token chosen once, in the second 3 twice and 4 never.
    expected = [
        ((1, 3), math.log(0.36)),
        ((2, 3), math.log(0.28)),
        ((1, 4), math.log(0.24) - 0.5),
        ((1, 3), math.log(0.36) - 1.5),
    ]
    results = groups_of(table_model(table, 5), 4, 2, 0.5, max_new_tokens=2, length_penalty=0.0).run()
    assert [output.token_ids for output in results] == [tokens for tokens, _ in expected]
    assert [output.score for output in results] == pytest.approx([score for _, score in expected])


def test_a_group_that_is_done_counts_as_choosing_the_end() -> None:
    # The first group ends with (1, 0). Then the second, at (2, 1), sees the end token at 3 less.
    table = {
        (): {1: 0.6, 2: 0.4},
        (1,): {0: 0.9, 3: 0.1},
        (2,): {1: 0.4, 3: 0.6},
        (2, 1): {0: 0.6, 3: 0.4},
    }
    first, second = groups_of(table_model(table, 4), 2, 2, 3.0, early_stopping=True, max_new_tokens=3).run()
    assert (first.token_ids, first.finish_reason) == ((1, 0), "stop")
    assert (second.token_ids, second.finish_reason) == ((2, 1, 3), "length")
    assert second.score == pytest.approx(math.log(0.4**3) / 3)


@pytest.mark.parametrize(
    "processed",
    [{}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 1}, {"sequence_bias": [[[2], 2.0]]}],
)
@pytest.mark.parametrize("penalty", [0.4, 3.0])
def test_groups_of_one_beam_are_greedy_in_turn(processed: dict[str, Any], penalty: float) -> None:
    params = {"eos": (), "max_new_tokens": 5, **processed}
    for seed in range(5):
        model = random_model(40, seed, spread=0.7)
        expected = diverse_greedy(model, 4, 5, penalty, **params)
        expected.sort(key=lambda pair: -pair[1])
        results = groups_of(model, 4, 4, penalty, length_penalty=0.0, **params).run()
        assert [output.token_ids for output in results] == [tokens for tokens, _ in expected]
        assert [output.score for output in results] == pytest.approx(
            [total for _, total in expected], abs=1e-4
        )


def test_the_first_group_searches_as_if_it_were_alone() -> None:
    for seed in range(10):
        model = random_model(50, seed)
        groups = groups_of(model, 6, 2, 1.0, eos=(), max_new_tokens=5)
        alone = Search(model, eos=(), num_beams=3, num_return_sequences=3, max_new_tokens=5)
        together = {(hypothesis.token_ids, hypothesis.score) for hypothesis in groups.run()}
        assert together >= {(hypothesis.token_ids, hypothesis.score) for hypothesis in alone.run()}


@pytest.mark.parametrize(("early_stopping", "steps"), [(True, 2), (False, 4), ("never", 5)])
def test_early_stopping_ends_the_search_when_it_says(early_stopping: Any, steps: int) -> None:
    # Groups of two finish (0) with 0.4, (1, 0) with 0.21 and, if they look on, (2, 2, 0) with 0.225. What
    # ends counts as promising too, so they look at a fourth token, of 0.035; "never" hopes for a fifth.
    table = {
        (): {0: 0.4, 1: 0.35, 2: 0.25},
        (1,): {0: 0.6, 1: 0.4},
        (2,): {2: 0.9, 0: 0.1},
        (1, 1): {1: 0.5, 2: 0.5},
        (2, 2): {0: 1.0},
    }
    further = {prefix: {1: 0.5, 2: 0.5} for length in (3, 4) for prefix in product((1, 2), repeat=length)}
    params = {"num_return_sequences": 1, "max_new_tokens": 5, "early_stopping": early_stopping}
    search = groups_of(table_model(table | further, 3), 4, 2, 1e-6, **params)
    search.run()
    assert len(search.decisions) == steps


def test_a_group_ends_only_with_its_best_candidates() -> None:
    # Token 1 is the third best and an end token, so each group of two ends with token 0 only.
    model = table_model({(): {3: 0.4, 0: 0.3, 1: 0.2, 4: 0.06, 2: 0.04}}, 5)
    search = groups_of(model, 4, 2, 0.1, eos=(0, 1, 2), early_stopping="never")
    decision = search.step()
    assert [kept.token_ids for kept in decision.kept] == [(0,), (0,)]
    assert [branch.parent for branch in decision.branches] == [0, 0, 0, 0]
    assert [branch.sample_index for branch in decision.branches] == [0, 1, 2, 3]
    assert [row.output_token_ids for row in search.rows] == [[3], [4], [3], [4]]


def test_a_stop_string_ends_like_an_end_token() -> None:
    table = {(): {1: 0.6, 2: 0.4}, (1,): {1: 0.5, 3: 0.5}, (2,): {2: 0.5, 3: 0.5}}
    first, second = groups_of(table_model(table, 4), 2, 2, 0.1, eos=(), stops=[(1,)], max_new_tokens=2).run()
    assert first.token_ids == second.token_ids == (1,)
    assert first.finish_reason == "stop"


def test_a_small_vocabulary_leaves_beams_empty() -> None:
    search = groups_of(random_model(2), 8, 2, 0.5, eos=(), max_new_tokens=2)
    assert [branch.sample_index for branch in search.step().branches] == [0, 1, 4, 5]
    assert len(search.run()) == 8
