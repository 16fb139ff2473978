"""Beam searches of one step: each gets what it gets alone, and the step's logits stay as they are."""

from typing import Any

import numpy as np
import pytest

from mindbatch.io.errors import MindBatchError
from search_play import Search, random_model, run_together

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
