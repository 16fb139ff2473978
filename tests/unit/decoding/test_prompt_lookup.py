"""Prompt lookup: the first occurrence of the longest n-gram, and what followed it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.row import Draft, Row
from mindbatch.decoding.speculative import propose


def row(prompt: list[int], output: list[int], longest: int = 2, eos: tuple[int, ...] = ()) -> Row:
    params = DecodingParams(prompt_lookup_num_tokens=3, max_matching_ngram_size=longest)
    return Row(params, prompt, output, eos, 0)


@pytest.mark.parametrize(
    ("prompt", "output", "longest", "count", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [], 2, 3, (3, 4, 5)),
        ([1, 2, 3, 4], [9, 1, 2], 2, 3, (3, 4, 9)),  # across prompt and output
        ([5, 2, 7, 1, 2, 8, 1], [2], 2, 2, (8, 1)),  # the pair comes before the single token
        ([5, 2, 7, 1, 2, 8, 1], [2], 1, 2, (7, 1)),  # the first of several
        ([6, 1, 2, 3, 0, 1, 2, 4, 6, 1], [2], 2, 1, (3,)),
        ([5, 1, 2, 3, 6, 1, 2, 4, 6, 1], [2], 3, 1, (4,)),
        ([5, 1, 2, 3, 6, 1, 2, 4, 6, 1], [2], 9, 1, (4,)),
        ([3, 3], [3], 2, 4, (3,)),  # no more than the text has
        ([4, 4, 4, 4], [4], 1, 2, (4, 4)),
        ([1, 2], [3], 2, 3, None),
        ([1], [], 2, 3, None),
    ],
)
def test_what_is_drafted(
    prompt: list[int], output: list[int], longest: int, count: int, expected: tuple[int, ...] | None
) -> None:
    draft = propose(row(prompt, output, longest), count)
    assert draft == (None if expected is None else Draft(expected))


@pytest.mark.parametrize(("eos", "expected"), [((8,), (7, 1)), ((6, 7), None), ((2,), (7, 1, 8))])
def test_it_stops_before_an_end_token(eos: tuple[int, ...], expected: tuple[int, ...] | None) -> None:
    draft = propose(row([2, 7, 1, 8], [2], eos=eos), 3)
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
    draft = propose(row(prompt, output, longest), count)
    expected = looked_up(prompt + output, longest, count)
    assert (None if draft is None else draft.token_ids) == expected
    assert draft is None or draft.probabilities is None
