"""Suppressed tokens, bad words and n-grams that may not come again, by hand."""

from collections.abc import Callable

import pytest

Forbidden = Callable[..., set[int]]


def test_suppressed_tokens_never_come(forbidden: Forbidden) -> None:
    assert forbidden([0], [], suppress_tokens=[1, 3]) == {1, 3}
    assert forbidden([0], [2, 2], suppress_tokens=[1, 3]) == {1, 3}


def test_begin_suppressed_tokens_do_not_come_first(forbidden: Forbidden) -> None:
    assert forbidden([0, 0], [], begin_suppress_tokens=[1, 3]) == {1, 3}
    assert forbidden([0, 0], [2], begin_suppress_tokens=[1, 3]) == set()


@pytest.mark.parametrize(
    ("prompt", "output", "size", "expected"),
    [
        ([0, 1, 2, 0], [], 2, {1}),
        ([0, 1], [2, 0], 2, {1}),  # an n-gram of the prompt
        ([3, 0], [1, 2, 0], 2, {1}),  # one that reaches from the prompt into the output
        ([3], [0, 1, 0], 2, {1}),
        ([0, 1, 0, 2, 0], [], 2, {1, 2}),
        ([0, 0], [], 2, {0}),
        ([0, 1, 2, 0, 1], [], 3, {2}),
        ([0, 1, 2, 3, 1, 4, 0], [1], 3, {2}),  # 3 1 4 begins otherwise
        ([0, 1, 2, 0, 1], [], 4, set()),
        ([0, 3], [3], 1, {0, 3}),
        ([0], [], 2, set()),
        ([5], [], 3, set()),
        ([5, 5], [], 4, set()),
    ],
)
def test_no_ngram_comes_twice(
    prompt: list[int], output: list[int], size: int, expected: set[int], forbidden: Forbidden
) -> None:
    assert forbidden(prompt, output, no_repeat_ngram_size=size) == expected


@pytest.mark.parametrize(
    ("prompt", "output", "size", "expected"),
    [
        ([0, 1, 2], [0], 2, {1}),
        ([0, 1], [2, 3, 2], 2, set()),  # only the output's own n-gram
        ([0, 1, 0], [], 2, {1}),
        ([0, 1, 2], [3, 0, 1], 3, {2}),
        ([0, 1, 2], [3, 1], 3, set()),
        ([0, 1], [2], 1, {0, 1}),
        ([0], [0], 2, set()),
    ],
)
def test_no_ngram_of_the_prompt_comes_again(
    prompt: list[int], output: list[int], size: int, expected: set[int], forbidden: Forbidden
) -> None:
    assert forbidden(prompt, output, encoder_no_repeat_ngram_size=size) == expected


BAD_WORDS = [[6], [1, 2], [1, 3], [4, 1, 5], [0, 7], [7]]


@pytest.mark.parametrize(
    ("prompt", "output", "expected"),
    [
        ([5, 5], [], {6}),
        ([5, 1], [], {6, 2, 3}),
        ([5, 5], [1], {6, 2, 3}),
        ([5, 4], [1], {6, 2, 3, 5}),
        ([4, 5], [1], {6, 2, 3}),
        ([5, 0], [], {6, 7}),  # an end token may end a longer word, but is none by itself
        ([1], [], {6}),  # transformers looks for a word of two tokens in a context of two
        ([4, 1], [], {6, 2, 3}),
    ],
)
def test_bad_words_are_not_finished(
    prompt: list[int], output: list[int], expected: set[int], forbidden: Forbidden
) -> None:
    assert forbidden(prompt, output, bad_words_ids=BAD_WORDS) == expected


def test_what_is_no_end_token_of_the_row_is_a_bad_word(forbidden: Forbidden) -> None:
    assert forbidden([0, 1], [], eos=(5, 6), bad_words_ids=[[6], [7]]) == {7}
