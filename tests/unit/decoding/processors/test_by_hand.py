"""What tests/numerics/test_processors.py does not compare with transformers: our own rules, and limits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.processors import adjust, renormalised
from mindbatch.decoding.row import NoTokenLeftError, Row
from mindbatch.io.errors import MindBatchError

NEVER = -np.inf
SCORES = [1.0, 2.0, 3.0, 4.0]
LOGITS = np.array([2.0, -2.0, 0.0, 4.0], dtype=np.float32)
LARGEST = float(np.finfo(np.float32).max)


def row(prompt: Sequence[int], output: Sequence[int], eos: tuple[int, ...] = (3,), **params: Any) -> Row:
    return Row(DecodingParams(**params), prompt, list(output), eos, row_hash=1, key="a")


def adjusted(prompt: Sequence[int], output: Sequence[int], scores: Sequence[float], **params: Any) -> Any:
    """The scores after the processors. Token 7 ends unless another is named."""
    made = row(prompt, output, **{"eos": (7,), **params})
    return adjust(np.array(scores, dtype=np.float32), made).tolist()


@pytest.mark.parametrize(
    ("prompt", "output", "params", "expected"),
    [
        # Positive scores are divided and negative ones multiplied, once.
        ([0, 1, 0], [0, 1], {"repetition_penalty": 2.0}, [1, -4, 0, 4]),
        # On the output alone: one token 1 and three tokens 3.
        ([0, 2, 3], [3, 1, 3, 3], {"frequency_penalty": 0.5}, [2, -2.5, 0, 2.5]),
        ([0, 2, 3], [3, 1, 3, 3], {"presence_penalty": 1.5}, [2, -3.5, 0, 2.5]),
        ([0, 2, 3], [3, 1, 3, 3], {"frequency_penalty": 0.5, "presence_penalty": -2.0}, [2, -0.5, 0, 4.5]),
        ([0, 3], [], {"frequency_penalty": 1.0, "presence_penalty": 1.0}, [2, -2, 0, 4]),
        # What is added comes before what is multiplied.
        ([0], [0], {"logit_bias": {0: 2.0}, "repetition_penalty": 2.0}, [2, -2, 0, 4]),
        ([0], [0], {"frequency_penalty": 1.0, "repetition_penalty": 2.0}, [0.5, -2, 0, 4]),
        ([0], [0], {"presence_penalty": 1.5, "encoder_repetition_penalty": 2.0}, [1, -2, 0, 4]),
        (
            [0],
            [0],
            {"presence_penalty": 2.0, "sequence_bias": [[[0], 1.0]], "repetition_penalty": 2.0},
            [0.5, -2, 0, 4],
        ),
    ],
)
def test_penalties(prompt: list[int], output: list[int], params: dict[str, Any], expected: Any) -> None:
    assert adjusted(prompt, output, LOGITS.tolist(), **params) == expected


def test_logit_bias_is_added_at_every_position() -> None:
    for output in ([], [1, 1]):
        assert adjusted([0], output, [1, 1, 1, 1], logit_bias={"1": 2.5, 3: -100}) == [1, 3.5, 1, -99]


def test_biases_of_one_token_are_summed_before_they_are_added() -> None:
    """2**24 + 1 is no float32: added one by one, the ones would be lost."""
    pairs = [[[1], 1.0], [[3, 1], 1.0]]
    assert adjusted([0, 3], [], [0, 2.0**24], sequence_bias=pairs) == [0, 2.0**24 + 2]


@pytest.mark.parametrize(
    ("output", "params", "expected"),
    [
        ([], {"eos": (5, 6), "bad_words_ids": [[6], [7]]}, {7}),  # an end token of the row is no bad word
        ([1], {"min_length": 3}, set()),
        ([], {"min_length": 3}, {7}),
        ([1], {"min_new_tokens": 2}, {7}),
        ([1, 1], {"min_new_tokens": 2}, set()),
        ([], {"eos": (1, 3, 99), "min_new_tokens": 1}, {1, 3}),  # those that the vocabulary has
    ],
)
def test_end_tokens(output: list[int], params: dict[str, Any], expected: set[int]) -> None:
    scores = adjusted([0, 1], output, [0] * 8, **params)
    assert {token for token, score in enumerate(scores) if score == NEVER} == expected


def only(*tokens: int) -> list[float]:
    return [0 if token in tokens else NEVER for token in range(4)]


TO_TWO_ENDS = {"forced_eos_token_id": [1, 2]}


@pytest.mark.parametrize(
    ("prompt", "output", "params", "expected"),
    [
        ([0], [], {"forced_bos_token_id": 2}, only(2)),
        ([0, 1, 0], [], {"forced_bos_token_id": 2}, only(2)),
        ([0], [2], {"forced_bos_token_id": 2}, SCORES),
        ([0, 1, 0], [1], TO_TWO_ENDS | {"max_new_tokens": 2}, only(1, 2)),
        ([0, 1, 0], [], TO_TWO_ENDS | {"max_new_tokens": 2}, SCORES),
        ([0, 1, 0], [1], TO_TWO_ENDS | {"max_new_tokens": 3}, SCORES),
        ([0, 1, 0], [], TO_TWO_ENDS | {"max_length": 4}, only(1, 2)),
        ([0, 1, 0], [1], TO_TWO_ENDS | {"max_length": 5, "max_new_tokens": 9}, only(1, 2)),
        ([0, 1, 0], [], TO_TWO_ENDS, SCORES),
        ([0, 1, 0], [1] * 127, TO_TWO_ENDS, only(1, 2)),  # 128 new tokens are the default
        # A forced end comes before a minimum and after a forced beginning, suppression after both.
        (
            [0],
            [],
            {
                "forced_eos_token_id": 3,
                "forced_bos_token_id": 1,
                "max_length": 2,
                "min_length": 2,
                "eos": (3,),
            },
            only(3),
        ),
        ([0], [], TO_TWO_ENDS | {"max_new_tokens": 1, "suppress_tokens": [1]}, only(2)),
        ([0], [], TO_TWO_ENDS | {"max_new_tokens": 1, "begin_suppress_tokens": [2]}, only(1)),
        # It does not come from what the user's function allows.
        ([0], [], {"prefix_allowed_tokens_fn": lambda key, text: [1], "forced_bos_token_id": 2}, only(2)),
    ],
)
def test_forced_tokens(prompt: list[int], output: list[int], params: dict[str, Any], expected: Any) -> None:
    assert adjusted(prompt, output, SCORES, **params) == expected


@pytest.mark.parametrize(("max_tokens", "forced"), [(4, False), (3, True), (2, False)])
def test_the_rows_own_limit_counts_most(max_tokens: int, forced: bool) -> None:
    made = row([0], [0], forced_eos_token_id=1, max_new_tokens=9)
    made.max_tokens = max_tokens
    for either in (made, made.fork()):
        assert bool(np.isneginf(adjust(LOGITS, either)[0])) == forced


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("output", "decay", "expected"),
    [
        ([1, 1], (2, 2.0), [1, 4, -2]),  # the start itself
        ([1, 1, 1], (2, 2.0), [1, 8, 0]),  # s + |s| * (2 - 1)
        ([0] * 100, (0, 1e6), [1, LARGEST, LARGEST]),
    ],
)
def test_the_end_gains_score_past_the_start(output: list[int], decay: Any, expected: list[float]) -> None:
    params = {"exponential_decay_length_penalty": decay, "eos": (1, 2, 99)}
    assert adjusted([0] * 5, output, [1, 4, -2], **params) == expected


@pytest.mark.filterwarnings("error")
def test_what_does_not_gain_score() -> None:
    """An end that is forbidden stays so, and zero times anything is zero."""
    decay: dict[str, Any] = {"exponential_decay_length_penalty": (0, 1e6)}
    assert adjusted([0], [0], [1, 4], eos=(1,), min_new_tokens=2, **decay) == [1, NEVER]
    assert adjusted([0], [0] * 100, [1, 0], eos=(1,), **decay) == [1, 0]


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


@pytest.mark.parametrize("output", [[], [0], [0, 3, 0]])
@pytest.mark.parametrize("name", [*EVERYTHING, "all"])
def test_the_models_logits_are_not_changed(name: str, output: list[int]) -> None:
    params = EVERYTHING if name == "all" else {name: EVERYTHING[name]}
    before = LOGITS.copy()
    adjust(LOGITS, row([0, 3, 0], output, max_new_tokens=4, **params))
    np.testing.assert_array_equal(LOGITS, before)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"min_length": 1},
        {"min_new_tokens": 0},
        {"bad_words_ids": [[1, 2]]},
        {"sequence_bias": [[[1, 2], 1.0]]},
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


def test_log_probabilities_come_last_without_sampling() -> None:
    """Of tokens 0 and 3 with logits 2 and 4, after 3 is halved twice: 2 and 1."""
    params = {"repetition_penalty": 4.0, "suppress_tokens": [1, 2], "renormalize_logits": True}
    expected = np.array([-np.log1p(np.exp(-1)), NEVER, NEVER, -1 - np.log1p(np.exp(-1))])
    for greedy in ({}, {"do_sample": True, "temperature": 0}):
        np.testing.assert_allclose(adjust(LOGITS, row([3], [], **greedy, **params)), expected, rtol=1e-6)


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


FOUR = np.array([1, 2, 3, 4], dtype=np.float32)
END = 3


class Only:
    """A constraint that allows the same tokens always."""

    error: str | None = None

    is_complete = False

    def __init__(self, *token_ids: int) -> None:
        self.token_ids = token_ids

    def allowed(self, eos_token_ids: tuple[int, ...]) -> NDArray[np.bool_]:
        return np.isin(np.arange(FOUR.size), self.token_ids)

    def advance(self, token_id: int) -> None: ...

    def fork(self) -> "Only":
        return self


def after(
    constraint: Only | None = None,
    output: Sequence[int] = (0,),
    eos: tuple[int, ...] = (END,),
    **params: Any,
) -> set[int]:
    """The tokens that stay possible after a prompt of one token."""
    row = Row(DecodingParams(**params), [0], list(output), eos, row_hash=1, key="r", constraint=constraint)
    return {int(token) for token in np.flatnonzero(np.isfinite(adjust(FOUR, row)))}


def test_the_callable_sees_the_rows_key_and_its_tokens() -> None:
    seen = []

    def allow(key: str, tokens: Sequence[int]) -> list[int]:
        seen.append((key, list(tokens)))
        return [1, END]

    assert after(output=[2], prefix_allowed_tokens_fn=allow) == {1, END}
    assert seen == [("r", [0, 2])]


@pytest.mark.parametrize("given", [{1, 2}, (2, 1), iter([1, 2]), np.array([1, 2], dtype=np.int32)])
def test_the_callable_gives_any_collection(given: Any) -> None:
    assert after(prefix_allowed_tokens_fn=lambda key, tokens: given) == {1, 2}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([4], "0 to 3"),
        ([-1], "0 to 3"),
        ([1.0], "whole numbers, not float64"),
        ([True], "not bool"),
        ([[1, 2]], r"shape \(1, 2\)"),
        (None, "NoneType"),
    ],
)
def test_a_wrong_answer_of_the_callable_is_named(given: Any, reason: str) -> None:
    with pytest.raises(MindBatchError, match=rf"^r: decoding.prefix_allowed_tokens_fn: .*{reason}"):
        after(prefix_allowed_tokens_fn=lambda key, tokens: given)


def test_a_failure_of_the_callable_names_the_row_and_keeps_its_cause() -> None:
    def allow(key: str, tokens: Sequence[int]) -> list[int]:
        raise KeyError("trie")

    with pytest.raises(MindBatchError, match=r"^r: .*KeyError\('trie'\)") as raised:
        after(prefix_allowed_tokens_fn=allow)
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("given", [(), np.array([], dtype=np.int64)])
def test_a_callable_that_allows_nothing_leaves_no_token(given: Any) -> None:
    with pytest.raises(NoTokenLeftError, match="prefix_allowed_tokens_fn"):
        after(prefix_allowed_tokens_fn=lambda key, tokens: given)


def test_a_constraint_keeps_the_scores_of_what_it_allows() -> None:
    row = Row(DecodingParams(), [0], [], (END,), row_hash=1, constraint=Only(0, 2))
    assert adjust(FOUR, row).tolist() == [1, -np.inf, 3, -np.inf]


def test_a_constraint_that_no_token_can_go_on_with_says_why() -> None:
    constraint = Only(0, 2)
    constraint.error = "decoding.regex='a.': no token of the model continues 'a'"
    row = Row(DecodingParams(), [0], [], (END,), row_hash=1, key="r", constraint=constraint)
    with pytest.raises(NoTokenLeftError, match="^r: decoding.regex='a.': no token"):
        adjust(np.zeros(5, dtype=np.float32), row)


def test_a_minimum_length_forbids_the_end_that_a_constraint_allows() -> None:
    assert after(Only(1, END), min_new_tokens=9) == {1}


def test_where_the_constraint_can_only_end_it_ends_below_a_minimum_length() -> None:
    assert after(Only(END), min_new_tokens=9) == {END}
    assert after(Only(2, END), eos=(2, END, 99), min_new_tokens=9) == {2, END}


def test_a_forced_end_against_the_constraint_is_left_to_the_length_limit() -> None:
    assert after(Only(1, 2), forced_eos_token_id=END, max_new_tokens=2) == {1, 2}
    assert after(Only(1, END), forced_eos_token_id=END, max_new_tokens=2) == {END}


@pytest.mark.parametrize("kind", [{"regex": "a"}, {"json_schema": {"type": "null"}}], ids=["regex", "schema"])
def test_a_forced_beginning_against_the_constraint_leaves_no_token(kind: dict[str, Any]) -> None:
    """What the forced token overrules is not blamed."""
    reasons = f"forbidden by forced_bos_token_id, {next(iter(kind))};"
    with pytest.raises(NoTokenLeftError, match=f"^r: .*{reasons}"):
        after(Only(1), output=(), forced_bos_token_id=2, bad_words_ids=[[0]], **kind)
    assert after(Only(1), forced_bos_token_id=2, **kind) == {1}
