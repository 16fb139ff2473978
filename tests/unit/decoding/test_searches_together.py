"""All beam searches: alone and in one step they are the same, dead ends are dropped, the best are kept."""

from typing import Any

import numpy as np
import pytest

from mindbatch.decoding.row import NoTokenLeftError
from mindbatch.io.errors import MindBatchError
from search_play import Search, random_model, run_together, table_model

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
    assert [found.token_ids for found in search.run()] == [(2, 2)]


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
        ended_before = [found for found in results if len(found.token_ids) < len(search.decisions)]
        assert all(found in before for found in ended_before)
        assert not search.decisions[-1].branches
        assert list(results) == sorted(results, key=lambda found: -(found.score or 0))
        assert len(results) == 2
