"""Speculative decoding: plain decoding's own output, token for token or in distribution, for any draft."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as testing
from hypothesis import strategies as st
from numpy.typing import NDArray
from shadow_model import VOCABULARY, fingerprints, logits_of

from goodness_of_fit import assert_distributed, draws
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.draws import row_hash
from mindbatch.decoding.filters import sampling_candidates
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import Draft, Row, TokenChoice
from mindbatch.decoding.sampling import SamplingStrategy
from mindbatch.decoding.softmax import softmax
from mindbatch.decoding.speculative import SpeculativeStrategy, guess, propose
from mindbatch.decoding.strategy import GroupView
from mindbatch.io.errors import MindBatchError

PROMPT = [3, 1, 0]
EOS = (2, 7)
SETTINGS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.8, "logprobs": 2},
    {"min_new_tokens": 4, "no_repeat_ngram_size": 2},
    {"do_sample": True, "seed": 5, "logprobs": 1},
    {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.5},
    {"do_sample": True, "top_k": 3, "min_new_tokens": 4},
]
Scores = Callable[[Sequence[int]], NDArray[np.float32]]


def row(key: str, output: Sequence[int] = (), draft: Sequence[int] | None = None, **params: Any) -> Row:
    found = Row(DecodingParams(**params), PROMPT, list(output), EOS, row_hash(key))
    found.draft = None if draft is None else Draft(tuple(draft))
    return found


def model(tokens: Sequence[int]) -> NDArray[np.float32]:
    """Logits [VOCABULARY] that follow the tokens."""
    return logits_of(fingerprints(tokens)[-1])


def logits_for(rows: Sequence[Row], scores: Scores = model) -> NDArray[np.float32]:
    """What the model says after each row and after each of its drafted tokens."""
    return np.stack(
        [
            scores([*one.prompt_token_ids, *one.output_token_ids, *drafted[:count]])
            for one in rows
            for drafted in [one.draft.token_ids if one.draft is not None else ()]
            for count in range(len(drafted) + 1)
        ]
    )


def verify(rows: Sequence[Row], scores: Scores = model) -> list[tuple[TokenChoice, ...]]:
    """The choices of each row, each in a group of its own, all in one call."""
    decisions = SpeculativeStrategy().advance([GroupView([one]) for one in rows], logits_for(rows, scores))
    for decision, one in zip(decisions, rows, strict=True):
        assert [(branch.parent, branch.sample_index) for branch in decision.branches] == [
            (0, one.sample_index)
        ]
    return [decision.branches[0].choices for decision in decisions]


def plain(start: Row, count: int) -> list[TokenChoice]:
    """What decoding without drafts adds to the row."""
    ahead, choices = start.fork(), []
    for _ in range(count):
        [decision] = SamplingStrategy().advance([GroupView([ahead])], logits_for([ahead]))
        choices += decision.branches[0].choices
        ahead.append(choices[-1])
    return choices


def until_it_differs(choices: list[TokenChoice], draft: Sequence[int]) -> tuple[TokenChoice, ...]:
    """The choices that a draft can save: those it foresaw, and the one after them unless it has ended."""
    for place, choice in enumerate(choices):
        ended = choice.token_id in EOS
        if place == len(draft) or choice.token_id != draft[place] or ended:
            return tuple(choices[: place + 1])
    raise AssertionError("too few choices")


@st.composite
def drafted_rows(draw: st.DrawFn) -> Row:
    """A row whose draft is right for a while, then random."""
    output = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4))
    one = row(str(draw(st.integers(0, 99))), output, **draw(st.sampled_from(SETTINGS)))
    right = [choice.token_id for choice in plain(one, draw(st.integers(0, 5)))]
    wrong = draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=4))
    if right or wrong or draw(st.booleans()):
        one.draft = Draft((*right, *wrong))
    return one


class TestCertainDrafts:
    @given(drafted_rows())
    def test_output_is_that_of_plain_decoding(self, one: Row) -> None:
        drafted = () if one.draft is None else one.draft.token_ids
        [choices] = verify([one])
        assert choices == until_it_differs(plain(one, len(drafted) + 1), drafted)

    @testing(max_examples=draws(15, thorough=500))
    @given(st.lists(drafted_rows(), min_size=2, max_size=5))
    def test_a_row_gets_in_a_batch_what_it_gets_alone(self, rows: list[Row]) -> None:
        assert verify(rows) == [verify([one])[0] for one in rows]

    def test_rows_of_one_group_are_verified_each_by_itself(self) -> None:
        rows = [row("a", [1], [9, 9], do_sample=True), row("a", [5], do_sample=True), row("a", [1, 6], [3])]
        for index, one in enumerate(rows):
            one.sample_index = index
        [decision] = SpeculativeStrategy().advance([GroupView(rows)], logits_for(rows))
        assert [(branch.parent, branch.sample_index) for branch in decision.branches] == [
            (0, 0),
            (1, 1),
            (2, 2),
        ]
        assert [branch.choices for branch in decision.branches] == [verify([one])[0] for one in rows]

    def test_rows_and_logits_stay_as_they_were(self) -> None:
        one = row("a", [1], [choice.token_id for choice in plain(row("a", [1]), 3)])
        logits = logits_for([one])
        before = logits.copy()
        [decision] = SpeculativeStrategy().advance([GroupView([one])], logits)
        assert len(decision.branches[0].choices) > 1
        assert (one.output_token_ids, one.cumulative_logprob) == ([1], 0.0)
        np.testing.assert_array_equal(logits, before)

    def test_nothing_follows_an_end_token(self) -> None:
        def scores(tokens: Sequence[int]) -> NDArray[np.float32]:
            return np.eye(VOCABULARY, dtype=np.float32)[7 if len(tokens) == 6 else 5]

        [choices] = verify([row("a", [1], [5, 5, 7, 5, 5])], scores)
        assert [choice.token_id for choice in choices] == [5, 5, 7]

    def test_nothing_follows_a_fulfilled_constraint(self) -> None:
        class Two:
            """Fulfilled by two tokens."""

            error = None

            def __init__(self, left: int) -> None:
                self.left = left

            def allowed(self, eos_token_ids: tuple[int, ...]) -> NDArray[np.bool_]:
                return np.full(VOCABULARY, self.left > 0)

            @property
            def is_complete(self) -> bool:
                return self.left == 0

            def advance(self, token_id: int) -> None:
                self.left -= 1

            def fork(self) -> "Two":
                return Two(self.left)

        one = row("a", [1], [5, 5, 5, 5])
        one.constraint = Two(2)
        [choices] = verify([one], lambda tokens: np.eye(VOCABULARY, dtype=np.float32)[5])
        assert len(choices) == 2
        assert not one.constraint.is_complete


class TestWithoutDrafts:
    def test_the_first_step_branches_into_the_samples(self) -> None:
        one = row("a", do_sample=True, num_return_sequences=4)
        logits = logits_for([one])
        drafted = row("b", [1], [5, 5])
        both = np.concatenate([logits_for([drafted]), logits])
        expected = SamplingStrategy().advance([GroupView([one])], logits)
        assert SpeculativeStrategy().advance([GroupView([one])], logits) == expected
        groups = [GroupView([drafted]), GroupView([one])]
        assert SpeculativeStrategy().advance(groups, both)[1:] == expected
        assert len(expected[0].branches) == 4


SMALL = 4
ROWS = draws(500, thorough=5000)


def small_model(seed: int) -> Scores:
    """Logits over SMALL tokens that depend on the last two tokens."""
    table = (np.random.default_rng(seed).standard_normal((VOCABULARY, VOCABULARY, SMALL)) * 1.5).astype(
        np.float32
    )
    return lambda tokens: table[tokens[-2], tokens[-1]]


def near(scores: Scores, other: Scores) -> Scores:
    return lambda tokens: scores(tokens) + np.float32(0.3) * other(tokens)


TARGET = small_model(1)
OTHER = small_model(4)
DRAFTERS = {"itself": TARGET, "good": near(TARGET, small_model(2)), "bad": small_model(3), "one-hot": None}
FILTERED = {"temperature": 0.7, "top_k": 3, "repetition_penalty": 1.4}
NUCLEUS = {"top_p": 0.8, "no_repeat_ngram_size": 2}
PAIRS: list[Any] = [
    ("good", FILTERED),
    ("one-hot", NUCLEUS),
    *(
        pytest.param(*pair, marks=pytest.mark.slow)
        for pair in (("itself", {}), ("good", {}), ("bad", NUCLEUS), ("bad", FILTERED))
    ),
]


def give_drafts(rows: Sequence[Row], count: int, scores: Scores | None) -> None:
    """Drafts that another model draws as the rows would; certain tokens if there is no other model."""
    ahead = [one.fork() for one in rows]
    guesses = []
    for _ in range(count):
        logits = np.stack(
            [(scores or OTHER)([*one.prompt_token_ids, *one.output_token_ids]) for one in ahead]
        )
        guesses.append(guess(ahead, logits))
        for one, guessed in zip(ahead, guesses[-1], strict=True):
            one.append(TokenChoice(guessed.token_id, 0.0))
    for one, drawn in zip(rows, zip(*guesses, strict=True), strict=True):
        distributions = tuple(found.probabilities for found in drawn)
        one.draft = Draft(
            tuple(found.token_id for found in drawn),
            None if scores is None or one.params.greedy else distributions,
        )


def wanted(one: Row) -> NDArray[np.float32]:
    """The distribution [SMALL] that plain sampling draws the row's next token from."""
    scores = adjust(TARGET([*one.prompt_token_ids, *one.output_token_ids]), one)
    return softmax(sampling_candidates(scores, one.params).dense(SMALL))


def exact(start: Row, count: int) -> dict[tuple[int, ...], float]:
    """The probability of each continuation of `count` tokens under plain sampling."""
    found = {}
    for tokens in product(range(SMALL), repeat=count):
        ahead, probability = start.fork(), 1.0
        for token in tokens:
            probability *= float(wanted(ahead)[token])
            if probability == 0.0:  # nothing may follow what cannot be
                break
            ahead.append(TokenChoice(token, 0.0))
        found[tokens] = probability
    return found


def sampled(
    params: dict[str, Any], count: int, ahead: int, scores: Scores | None
) -> Counter[tuple[int, ...]]:
    """How often each continuation comes where drafts of `ahead` tokens are verified."""
    rows = [Row(DecodingParams(**params), PROMPT, [0], (), row_hash(f"row {n}")) for n in range(ROWS)]
    going = rows
    while going:
        give_drafts(going, ahead, scores)
        for one, choices in zip(going, verify(going, TARGET), strict=True):
            for choice in choices:
                one.append(choice)
        going = [one for one in going if one.step <= count]
    return Counter(tuple(one.output_token_ids[1 : count + 1]) for one in rows)


class TestDrawnDrafts:
    @pytest.mark.parametrize(("drafter", "params"), PAIRS, ids=str)
    def test_output_is_distributed_as_plain_sampling(self, drafter: str, params: dict[str, Any]) -> None:
        params = {"do_sample": True, "seed": 3, **params}
        found = sampled(params, 3, 2, DRAFTERS[drafter])
        assert_distributed(found, exact(Row(DecodingParams(**params), PROMPT, [0], (), 0), 3))

    @pytest.mark.parametrize("drafter", ["itself", "good", "bad"])
    def test_as_many_are_accepted_as_the_distributions_share(self, drafter: str) -> None:
        scores = DRAFTERS[drafter]
        assert scores is not None
        rows = [row(f"row {n}", [0], do_sample=True) for n in range(ROWS)]
        give_drafts(rows, 1, scores)
        accepted = np.mean([len(choices) == 2 for choices in verify(rows, TARGET)])
        shared = np.minimum(wanted(rows[0]), softmax(scores([*PROMPT, 0]))).sum()
        # A first end token hides whether it was accepted; EOS is token 2 among these four.
        hidden = np.minimum(wanted(rows[0]), softmax(scores([*PROMPT, 0])))[2]
        assert accepted == pytest.approx(shared - hidden, abs=4 * (0.25 / ROWS) ** 0.5)

    def test_a_token_that_may_not_come_is_never_accepted(self) -> None:
        certain = np.zeros(SMALL, np.float32)
        certain[1] = 1.0
        for number in range(50):
            one = row(str(number), [0], do_sample=True, suppress_tokens=[1])
            one.draft = Draft((1,), (certain,))
            [choices] = verify([one], TARGET)
            assert [choice.token_id for choice in choices] != [1]

    def test_what_is_said_of_a_row_does_not_depend_on_the_batch(self) -> None:
        rows = [row(f"row {n}", [0] * (1 + n % 3), do_sample=n % 4 > 0, top_k=n % 4 and 2) for n in range(12)]
        for count in (1, 2, 3):
            give_drafts(rows[count::4], count, DRAFTERS["good"])
        assert verify(rows, TARGET) == [verify([one], TARGET)[0] for one in rows]


LOGITS = np.array([[3, 4, 2, 5]], dtype=np.float32)


def guessing(key: str = "a", output: tuple[int, ...] = (1,), **params: Any) -> Row:
    return Row(DecodingParams(**params), [0, 3], list(output), (), row_hash(key))


def test_greedy_rows_are_given_the_likeliest_after_the_processors() -> None:
    assert guess([guessing()], LOGITS) == [(3, None)]
    assert guess([guessing(repetition_penalty=3.0)], LOGITS) == [(2, None)]  # penalises tokens 0, 1 and 3


def test_the_distribution_is_that_after_the_filters() -> None:
    [found] = guess([guessing(do_sample=True, top_k=2, suppress_tokens=[1])], LOGITS)
    assert found.probabilities is not None
    expected = np.array([np.exp(3), 0, 0, np.exp(5)])
    np.testing.assert_allclose(found.probabilities, expected / expected.sum(), rtol=1e-6)
    assert found.token_id in (0, 3)


def test_random_numbers_are_not_those_of_sampling() -> None:
    rows = [guessing(f"row {n}", do_sample=True) for n in range(200)]
    logits = np.zeros((200, 1000), np.float32)
    guessed = [found.token_id for found in guess(rows, logits)]
    decisions = SamplingStrategy().advance([GroupView([one]) for one in rows], logits)
    drawn = [decision.branches[0].choices[0].token_id for decision in decisions]
    assert sum(a == b for a, b in zip(guessed, drawn, strict=True)) < 5  # 0.2 expected


def test_a_row_is_given_in_a_batch_what_it_is_given_alone() -> None:
    rows = [guessing(f"row {n}", (1,) * (n + 1), do_sample=n % 2 == 1, seed=n) for n in range(8)]
    logits = np.random.default_rng(0).standard_normal((8, 50)).astype(np.float32)
    together = guess(rows, logits)
    for number, one in enumerate(rows):
        [alone] = guess([one], logits[number : number + 1])
        assert alone.token_id == together[number].token_id
        if one.params.do_sample:
            np.testing.assert_array_equal(alone.probabilities, together[number].probabilities)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    logits = np.repeat(LOGITS, 2, axis=0)
    logits[1, 2] = bad
    with pytest.raises(MindBatchError, match=r"model\.assistant"):
        guess([guessing(), guessing("b", do_sample=True)], logits)


def looking_up(prompt: list[int], output: list[int], longest: int = 2, eos: tuple[int, ...] = ()) -> Row:
    params = DecodingParams(prompt_lookup_num_tokens=3, max_matching_ngram_size=longest)
    return Row(params, prompt, output, eos, 0)


@pytest.mark.parametrize(
    ("prompt", "output", "longest", "count", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [], 2, 3, (3, 4, 5)),
        ([1, 2, 3, 4], [9, 1, 2], 2, 3, (3, 4, 9)),  # across prompt and output
        ([5, 2, 7, 1, 2, 8, 1], [2], 2, 2, (8, 1)),  # the pair comes before the single token
        ([5, 2, 7, 1, 2, 8, 1], [2], 1, 2, (7, 1)),  # the first of several
        ([3, 3], [3], 2, 4, (3,)),  # no more than the text has
        ([1, 2], [3], 2, 3, None),
    ],
)
def test_what_is_drafted(
    prompt: list[int], output: list[int], longest: int, count: int, expected: tuple[int, ...] | None
) -> None:
    draft = propose(looking_up(prompt, output, longest), count)
    assert draft == (None if expected is None else Draft(expected))


@pytest.mark.parametrize(("eos", "expected"), [((8,), (7, 1)), ((6, 7), None), ((2,), (7, 1, 8))])
def test_it_stops_before_an_end_token(eos: tuple[int, ...], expected: tuple[int, ...] | None) -> None:
    draft = propose(looking_up([2, 7, 1, 8], [2], eos=eos), 3)
    assert draft == (None if expected is None else Draft(expected))


def looked_up(text: list[int], longest: int, count: int) -> tuple[int, ...] | None:
    """The rule by its letter: the longest n-grams first, each sought from the left."""
    for size in range(min(longest, len(text) - 1), 0, -1):
        for start in range(len(text) - size):
            if text[start : start + size] == text[-size:]:
                return tuple(text[start + size : start + size + count])
    return None


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=14),
    st.lists(st.integers(0, 2), max_size=6),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_as_the_rule_says(prompt: list[int], output: list[int], longest: int, count: int) -> None:
    draft = propose(looking_up(prompt, output, longest), count)
    expected = looked_up(prompt + output, longest, count)
    assert (None if draft is None else draft.token_ids) == expected
    assert draft is None or draft.probabilities is None
