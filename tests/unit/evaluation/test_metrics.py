"""Every measure against cases worked by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.evaluation import metrics
from mindbatch.evaluation.metrics import distinct, mean, ngrams, perplexity, repetition, self_bleu

TOKENS = st.lists(st.integers(0, 5), max_size=30)


def test_ngrams_are_in_order_and_none_is_short() -> None:
    assert ngrams([1, 2, 3, 4], 3) == [(1, 2, 3), (2, 3, 4)]
    assert ngrams([1, 2], 3) == []


def test_distinct_by_hand() -> None:
    outputs = [[1, 2, 1, 2], [1, 3]]  # pairs: 12 21 12 | 13
    assert distinct(outputs, 1) == 3 / 6
    assert distinct(outputs, 2) == 3 / 4
    assert distinct(outputs, 3) == 2 / 2


def test_no_ngram_spans_two_outputs() -> None:
    assert distinct([[1], [2]], 2) is None
    assert distinct([[1, 2], [2, 1]], 2) == 1


def test_repetition_by_hand() -> None:
    assert repetition([1, 2, 3, 4, 5, 6]) == 0
    assert repetition([7] * 8) == 1 - 1 / 5
    # 1234 2341 3412 4123 1234: four of five are new
    assert repetition([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)
    assert repetition([1, 2, 3]) is None


@given(TOKENS)
def test_measures_are_shares(tokens: list[int]) -> None:
    for value in (distinct([tokens], 2), repetition(tokens)):
        assert value is None or 0 <= value <= 1


@given(TOKENS, TOKENS)
def test_a_second_copy_halves_what_is_distinct(tokens: list[int], other: list[int]) -> None:
    once, twice = distinct([tokens, other], 1), distinct([tokens, other, tokens, other], 1)
    assert (once is None) == (twice is None)
    if once is not None and twice is not None:
        assert twice == pytest.approx(once / 2)


def test_perplexity_by_hand() -> None:
    half_and_eighth = math.log(1 / 2) + math.log(1 / 8)  # the geometric mean is 1/4
    assert perplexity(half_and_eighth, 2) == pytest.approx(4)
    assert perplexity(0.0, 3) == 1
    assert perplexity(0.0, 0) is None
    assert perplexity(-math.inf, 3) == math.inf
    assert perplexity(-1e6, 1) == math.inf


def test_self_bleu_of_what_is_alike_and_of_what_is_not() -> None:
    assert self_bleu(["the cat sat on the mat"] * 3) == pytest.approx(100)
    assert self_bleu(["a b c d e f", "g h i j k l"]) == pytest.approx(0, abs=10)
    alike, apart = ["one two three four five", "one two three four six"], ["one two three", "four five six"]
    assert (self_bleu(alike) or 0) > (self_bleu(apart) or 0)


def test_self_bleu_by_hand() -> None:
    # Each against the other: 3 of 4 words, 2 of 3 pairs, 1 of 2 triples; of its one run of four none, which
    # counts as half of one (exponential smoothing). Both have four words: no brevity penalty.
    value = 100 * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** (1 / 4)
    assert self_bleu(["a b c d", "a b c e"]) == pytest.approx(value)


def test_a_text_of_two_words_can_be_alike() -> None:
    """It has no triples, which must not count as none in common."""
    assert self_bleu(["one two", "one two"]) == pytest.approx(100)


def test_self_bleu_is_a_mean_over_the_texts() -> None:
    # The third shares nothing with the others, and they are the same: 100, 100 and next to 0.
    value = self_bleu(["a b c d e f g", "a b c d e f g", "t u v w x y z"])
    assert value == pytest.approx(200 / 3, abs=5)


def test_self_bleu_needs_two_texts_with_words() -> None:
    assert self_bleu([]) is None
    assert self_bleu(["alone"]) is None
    assert self_bleu(["alone", "", " \n"]) is None


def test_a_chinese_letter_is_a_word() -> None:
    """Without spaces the whole text would be one word, and nothing of it shared."""
    assert (self_bleu(["今天天气很好我们去公园", "今天天气很好我们去海边"]) or 0) > 60


def test_self_bleu_of_many_texts_takes_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "LARGEST_SET", 2)
    assert self_bleu(["a b c d e", "a b c d e", "v w x y z"]) == pytest.approx(100)


def test_mean_leaves_out_what_is_missing() -> None:
    assert mean([1.0, None, 3.0]) == 2
    assert mean([None]) is None
