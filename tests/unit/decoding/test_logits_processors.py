"""All processors of a row together: their order, copying, rows that are left without a token."""

from typing import Any

import numpy as np
import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.processors import adjust, renormalised
from mindbatch.decoding.row import NoTokenLeftError, Row
from mindbatch.io.errors import MindBatchError

LOGITS = np.array([2.0, -2.0, 0.0, 4.0], dtype=np.float32)
NEVER = -np.inf
EVERYTHING: dict[str, Any] = {
    "logit_bias": {1: 1.0},
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "sequence_bias": [[[0], 1.0], [[0, 3], 1.0]],
    "encoder_repetition_penalty": 1.1,
    "repetition_penalty": 1.2,
    "no_repeat_ngram_size": 3,
    "encoder_no_repeat_ngram_size": 3,
    "bad_words_ids": [[0, 3]],
    "min_new_tokens": 4,
    "prefix_allowed_tokens_fn": lambda key, tokens: [0, 1, 2, 3],
    "forced_eos_token_id": 2,
    "exponential_decay_length_penalty": (0, 1.1),
    "suppress_tokens": [1],
    "begin_suppress_tokens": [1],
    "renormalize_logits": True,
}


def row(prompt: list[int], output: list[int], eos: tuple[int, ...] = (3,), **params: Any) -> Row:
    return Row(DecodingParams(**params), prompt, output, eos, row_hash=1, key="a")


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"logit_bias": {0: 2.0}, "repetition_penalty": 2.0}, 2.0),
        ({"frequency_penalty": 1.0, "repetition_penalty": 2.0}, 0.5),
        ({"sequence_bias": [[[0], 2.0]], "repetition_penalty": 2.0}, 2.0),
        ({"presence_penalty": 1.5, "encoder_repetition_penalty": 2.0}, 1.0),
        ({"presence_penalty": 2.0, "sequence_bias": [[[0], 1.0]], "repetition_penalty": 2.0}, 0.5),
    ],
)
def test_what_is_added_comes_before_what_is_multiplied(params: dict[str, Any], expected: float) -> None:
    """Token 0 has 2 to begin with, and has come once in the prompt and once in the output."""
    assert adjust(LOGITS, row([0], [0], **params))[0] == expected


def test_a_forced_token_does_not_come_from_what_was_allowed() -> None:
    forced = row([0], [], prefix_allowed_tokens_fn=lambda key, tokens: [1], forced_bos_token_id=2)
    assert adjust(LOGITS, forced).tolist() == [NEVER, NEVER, 0, NEVER]


def test_suppression_comes_after_a_forced_end() -> None:
    params = {"forced_eos_token_id": [1, 2], "max_new_tokens": 1}
    assert adjust(LOGITS, row([0], [], suppress_tokens=[1], **params)).tolist() == [NEVER, NEVER, 0, NEVER]
    first = row([0], [], begin_suppress_tokens=[2], **params)
    assert adjust(LOGITS, first).tolist() == [NEVER, 0, NEVER, NEVER]


def test_penalties_follow_a_growing_output() -> None:
    growing = row([0], [], repetition_penalty=2.0)
    adjust(LOGITS, growing)
    growing.output_token_ids.append(3)
    assert adjust(LOGITS, growing).tolist() == [1.0, -2.0, 0.0, 2.0]


def test_forks_go_their_own_ways() -> None:
    parent = row([0], [1], eos=(), no_repeat_ngram_size=2, frequency_penalty=1.0)
    adjust(LOGITS, parent)
    twin = parent.fork()
    parent.output_token_ids += [2, 0]
    twin.output_token_ids += [3, 1]
    assert adjust(LOGITS, parent).tolist() == [1.0, NEVER, -1.0, 4.0]
    assert adjust(LOGITS, twin).tolist() == [2.0, -4.0, 0.0, NEVER]
    assert adjust(LOGITS, row([0], [1, 2, 0], (), **_parameters(parent))).tolist() == [1.0, NEVER, -1.0, 4.0]


def _parameters(of: Row) -> dict[str, Any]:
    names = ("no_repeat_ngram_size", "frequency_penalty")
    return {name: getattr(of.params, name) for name in names}


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"min_length": 1},
        {"min_new_tokens": 0},
        {"bad_words_ids": [[1, 2]]},
        {"no_repeat_ngram_size": 2},
        {"encoder_no_repeat_ngram_size": 2},
        {"frequency_penalty": 1.0},
        {"forced_eos_token_id": 2},
        {"exponential_decay_length_penalty": (0, 2.0)},
        {"forced_eos_token_id": 2, "sequence_bias": [[[1, 2], 1.0]], "no_repeat_ngram_size": 2},
        {"do_sample": True, "temperature": 0.5, "renormalize_logits": True},
    ],
)
def test_a_row_that_nothing_changes_is_not_copied(params: dict[str, Any]) -> None:
    assert adjust(LOGITS, row([0], [], **params)) is LOGITS


@pytest.mark.parametrize("output", [[], [0], [0, 3, 0]])
@pytest.mark.parametrize("name", [*EVERYTHING, "all"])
def test_the_models_logits_are_not_changed(name: str, output: list[int]) -> None:
    params = EVERYTHING if name == "all" else {name: EVERYTHING[name]}
    before = LOGITS.copy()
    adjust(LOGITS, row([0, 3, 0], output, max_new_tokens=4, **params))
    np.testing.assert_array_equal(LOGITS, before)


def test_log_probabilities_come_last_without_sampling() -> None:
    """Of tokens 0 and 3 with logits 2 and 4, after 3 is halved twice: 2 and 1."""
    params = {"repetition_penalty": 4.0, "suppress_tokens": [1, 2], "renormalize_logits": True}
    expected = np.array([-np.log1p(np.exp(-1)), NEVER, NEVER, -1 - np.log1p(np.exp(-1))])
    np.testing.assert_allclose(adjust(LOGITS, row([3], [], **params)), expected, rtol=1e-6)
    np.testing.assert_allclose(
        adjust(LOGITS, row([3], [], do_sample=True, temperature=0, **params)), expected, rtol=1e-6
    )


def test_with_sampling_log_probabilities_wait_for_the_filters() -> None:
    sampling = row([3], [], do_sample=True, repetition_penalty=4.0, renormalize_logits=True)
    scores = adjust(LOGITS, sampling)
    assert scores.tolist() == [2, -2, 0, 1]
    few = renormalised(scores[[0, 3]], sampling.params)
    np.testing.assert_allclose(np.exp(few).sum(), 1, rtol=1e-6)
    assert few[0] - few[1] == 1
    assert renormalised(scores, DecodingParams()) is scores


def test_a_row_without_a_token_left_is_named_with_what_forbids_them() -> None:
    dead = row([0, 1], [2], suppress_tokens=[1, 2], bad_words_ids=[[0]], min_new_tokens=2)
    dead.sample_index = 5
    with pytest.raises(NoTokenLeftError) as raised:
        adjust(LOGITS, dead)
    assert isinstance(raised.value, MindBatchError)
    assert str(raised.value) == (
        "a: no token is left for position 1 of output 5: forbidden by bad_words_ids, min_new_tokens, "
        "suppress_tokens; relax one of them"
    )


def test_a_model_that_gives_no_numbers_is_not_the_processors_matter() -> None:
    logits = np.full(4, np.nan, dtype=np.float32)
    assert np.isnan(adjust(logits, row([0], [], suppress_tokens=[1]))).sum() == 3
