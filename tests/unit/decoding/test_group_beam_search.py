"""Group beam search: worked diversity, its parts against their definitions, ends and independence."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import NoTokenLeftError
from search_play import PROMPT, Model, Search, log_probabilities, random_model, table_model

ANY = {1: 0.5, 2: 0.3, 3: 0.2}


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


class TestWorkedDiversity:
    @pytest.mark.parametrize(
        ("penalty", "expected"),
        [
            # log 0.5 = -0.69, log 0.3 = -1.20, log 0.2 = -1.61
            (0.3, [(1, -0.693), (1, -0.993), (2, -1.204)]),  # after two groups token 1 is at -1.29
            (0.8, [(1, -0.693), (2, -1.204), (1, -1.493)]),
            (2.0, [(1, -0.693), (2, -1.204), (3, -1.609)]),
        ],
    )
    def test_each_group_is_kept_off_what_earlier_ones_chose(
        self, penalty: float, expected: list[tuple[int, float]]
    ) -> None:
        search = Search(
            table_model({(): ANY}, 4),
            num_beams=3,
            num_beam_groups=3,
            num_return_sequences=3,
            diversity_penalty=penalty,
            max_new_tokens=1,
        )
        results = search.run()
        assert [found.token_ids for found in results] == [(token,) for token, _ in expected]
        assert [found.score for found in results] == pytest.approx([score for _, score in expected], abs=1e-3)

    def test_every_beam_of_a_group_counts(self) -> None:
        table = {(): {1: 0.6, 2: 0.4}, (1,): {3: 0.6, 4: 0.4}, (2,): {3: 0.7, 4: 0.3}}
        search = Search(
            table_model(table, 5),
            num_beams=4,
            num_beam_groups=2,
            num_return_sequences=4,
            diversity_penalty=0.5,
            max_new_tokens=2,
            length_penalty=0.0,
        )
        # In the first step the second group sees each token chosen once, in the second 3 twice and 4 never.
        expected = [
            ((1, 3), math.log(0.36)),
            ((2, 3), math.log(0.28)),
            ((1, 4), math.log(0.24) - 0.5),
            ((1, 3), math.log(0.36) - 1.5),
        ]
        results = search.run()
        assert [found.token_ids for found in results] == [tokens for tokens, _ in expected]
        assert [found.score for found in results] == pytest.approx([score for _, score in expected])

    def test_penalties_stay_in_the_sums(self) -> None:
        # The second group goes on with token 1 at 0.8 less, and has 1.6 less in the end.
        table = {(): {1: 0.9, 2: 0.1}, (1,): {1: 0.9, 2: 0.1}}
        search = Search(
            table_model(table, 3),
            num_beams=2,
            num_beam_groups=2,
            num_return_sequences=2,
            diversity_penalty=0.8,
            max_new_tokens=2,
        )
        first, second = search.run()
        assert first.token_ids == second.token_ids == (1, 1)
        assert first.score == pytest.approx(math.log(0.81) / 2)
        assert second.score == pytest.approx((math.log(0.81) - 1.6) / 2)
        assert second.cumulative_logprob == pytest.approx(math.log(0.81))

    def test_a_group_that_is_done_counts_as_choosing_the_end(self) -> None:
        # The first group ends with (1, 0). Then the second, at (2, 1), sees the end token at 3 less.
        table = {
            (): {1: 0.6, 2: 0.4},
            (1,): {0: 0.9, 3: 0.1},
            (2,): {1: 0.4, 3: 0.6},
            (2, 1): {0: 0.6, 3: 0.4},
        }
        search = Search(
            table_model(table, 4),
            num_beams=2,
            num_beam_groups=2,
            num_return_sequences=2,
            diversity_penalty=3.0,
            early_stopping=True,
            max_new_tokens=3,
        )
        first, second = search.run()
        assert (first.token_ids, first.finish_reason) == ((1, 0), "stop")
        assert (second.token_ids, second.finish_reason) == ((2, 1, 3), "length")
        assert second.score == pytest.approx(math.log(0.4**3) / 3)


class TestAgainstTheDefinition:
    @pytest.mark.parametrize(
        "processed",
        [{}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 1}, {"sequence_bias": [[[2], 2.0]]}],
    )
    @pytest.mark.parametrize("penalty", [0.4, 3.0])
    def test_groups_of_one_beam_are_greedy_in_turn(self, processed: dict[str, Any], penalty: float) -> None:
        for seed in range(5):
            model = random_model(40, seed, spread=0.7)
            search = Search(
                model,
                eos=(),
                num_beams=4,
                num_beam_groups=4,
                num_return_sequences=4,
                diversity_penalty=penalty,
                max_new_tokens=5,
                length_penalty=0.0,
                **processed,
            )
            expected = diverse_greedy(model, 4, 5, penalty, eos=(), max_new_tokens=5, **processed)
            expected.sort(key=lambda pair: -pair[1])
            results = search.run()
            assert [found.token_ids for found in results] == [tokens for tokens, _ in expected]
            assert [found.score for found in results] == pytest.approx(
                [total for _, total in expected], abs=1e-4
            )

    def test_the_first_group_searches_as_if_it_were_alone(self) -> None:
        for seed in range(10):
            model = random_model(50, seed)
            groups = Search(
                model,
                eos=(),
                num_beams=6,
                num_beam_groups=2,
                num_return_sequences=6,
                diversity_penalty=1.0,
                max_new_tokens=5,
            )
            alone = Search(model, eos=(), num_beams=3, num_return_sequences=3, max_new_tokens=5)
            found = {(hypothesis.token_ids, hypothesis.score) for hypothesis in groups.run()}
            assert found >= {(hypothesis.token_ids, hypothesis.score) for hypothesis in alone.run()}


class TestEnds:
    @pytest.mark.parametrize(("early_stopping", "steps"), [(True, 2), (False, 4), ("never", 5)])
    def test_early_stopping_ends_the_search_when_it_says(self, early_stopping: Any, steps: int) -> None:
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
        search = Search(
            table_model(table | further, 3),
            num_beams=4,
            num_beam_groups=2,
            diversity_penalty=1e-6,
            max_new_tokens=5,
            early_stopping=early_stopping,
        )
        search.run()
        assert len(search.decisions) == steps

    def test_a_group_ends_only_with_its_best_candidates(self) -> None:
        # Token 1 is the third best and an end token, so each group of two ends with token 0 only.
        search = Search(
            table_model({(): {3: 0.4, 0: 0.3, 1: 0.2, 4: 0.06, 2: 0.04}}, 5),
            eos=(0, 1, 2),
            num_beams=4,
            num_beam_groups=2,
            num_return_sequences=4,
            diversity_penalty=0.1,
            early_stopping="never",
        )
        decision = search.step()
        assert [kept.token_ids for kept in decision.kept] == [(0,), (0,)]
        assert [branch.parent for branch in decision.branches] == [0, 0, 0, 0]
        assert [branch.sample_index for branch in decision.branches] == [0, 1, 2, 3]
        assert [row.output_token_ids for row in search.rows] == [[3], [4], [3], [4]]

    def test_what_may_still_be_returned_is_kept(self) -> None:
        for seed in range(20):
            search = Search(
                random_model(20, seed, eager=[0]),
                num_beams=6,
                num_beam_groups=3,
                num_return_sequences=2,
                diversity_penalty=0.5,
                max_new_tokens=6,
            )
            results = search.run()
            kept: list[Any] = []
            for decision in search.decisions[:-1]:
                assert len(decision.kept) <= 2
                assert all(each in decision.kept or each not in results for each in kept)
                kept = list(decision.kept)
            ended_before = [found for found in results if len(found.token_ids) < len(search.decisions)]
            assert all(found in kept for found in ended_before)
            assert list(results) == sorted(results, key=lambda found: -(found.score or 0))
            assert len(results) == 2

    def test_a_stop_string_ends_like_an_end_token(self) -> None:
        table = {(): {1: 0.6, 2: 0.4}, (1,): {1: 0.5, 3: 0.5}, (2,): {2: 0.5, 3: 0.5}}
        search = Search(
            table_model(table, 4),
            eos=(),
            stops=[(1,)],
            num_beams=2,
            num_beam_groups=2,
            num_return_sequences=2,
            diversity_penalty=0.1,
            max_new_tokens=2,
        )
        first, second = search.run()
        assert first.token_ids == second.token_ids == (1,)
        assert first.finish_reason == "stop"


class TestFewCandidates:
    def test_a_small_vocabulary_leaves_beams_empty(self) -> None:
        search = Search(
            random_model(2),
            eos=(),
            num_beams=8,
            num_beam_groups=2,
            num_return_sequences=8,
            diversity_penalty=0.5,
            max_new_tokens=2,
        )
        assert [branch.sample_index for branch in search.step().branches] == [0, 1, 4, 5]
        assert len(search.run()) == 8

    def test_a_row_in_a_dead_end_is_dropped(self) -> None:
        bad = [[1, token] for token in range(3)]
        model = table_model({(): {1: 0.6, 2: 0.4}, (1,): {1: 1.0}, (2,): {2: 1.0}}, 3)
        search = Search(
            model,
            num_beams=2,
            num_beam_groups=2,
            num_return_sequences=2,
            diversity_penalty=2.0,
            max_new_tokens=2,
            bad_words_ids=bad,
        )
        [only] = search.run()
        assert only.token_ids == (2, 2)

    def test_a_search_without_any_way_on_is_an_error(self) -> None:
        search = Search(
            random_model(3),
            num_beams=2,
            num_beam_groups=2,
            diversity_penalty=1.0,
            suppress_tokens=(0, 1, 2),
        )
        with pytest.raises(NoTokenLeftError, match="suppress_tokens"):
            search.step()
