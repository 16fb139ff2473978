"""Group beam search: worked diversity, its parts against their definitions, ends and small vocabularies."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from mindbatch.decoding.processors import adjust
from search_play import PROMPT, Model, Search, log_probabilities, random_model, table_model


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
    assert [found.token_ids for found in results] == [tokens for tokens, _ in expected]
    assert [found.score for found in results] == pytest.approx([score for _, score in expected])


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
        assert [found.token_ids for found in results] == [tokens for tokens, _ in expected]
        assert [found.score for found in results] == pytest.approx([total for _, total in expected], abs=1e-4)


def test_the_first_group_searches_as_if_it_were_alone() -> None:
    for seed in range(10):
        model = random_model(50, seed)
        groups = groups_of(model, 6, 2, 1.0, eos=(), max_new_tokens=5)
        alone = Search(model, eos=(), num_beams=3, num_return_sequences=3, max_new_tokens=5)
        found = {(hypothesis.token_ids, hypothesis.score) for hypothesis in groups.run()}
        assert found >= {(hypothesis.token_ids, hypothesis.score) for hypothesis in alone.run()}


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
