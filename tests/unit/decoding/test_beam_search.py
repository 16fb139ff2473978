"""Beam search: against exhaustive search and worked examples; ends, lengths, dead ends and independence."""

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
        assert [found.token_ids for found in results] == sorted(outputs, key=lambda tokens: -scores[tokens])
        assert [found.score for found in results] == pytest.approx(sorted(scores.values(), reverse=True))

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
            assert all(max(found.token_ids) < 3 and math.isfinite(found.score or 0) for found in results)


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
        [found] = search.run()
        assert found.logprobs is not None
        assert len(found.logprobs) == len(found.token_ids)
        for place, (token, reported) in enumerate(zip(found.token_ids, found.logprobs, strict=True)):
            raw = log_probabilities(model((*PROMPT, *found.token_ids[:place])))
            assert list(reported)[:2] == np.argsort(-raw)[:2].tolist()
            assert reported[token] == pytest.approx(raw[token], abs=1e-5)
