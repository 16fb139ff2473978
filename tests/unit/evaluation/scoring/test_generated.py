"""Metrics of generated texts against cases worked by hand."""

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.evaluation import METRIC_NAMES, REFERENCE_FREE, metric_of, texts
from mindbatch.evaluation.metric import Generated
from mindbatch.evaluation.scores import MetricScores, scores_of
from mindbatch.evaluation.texts import repeated_share, self_bleus

TOKENS = st.lists(st.integers(0, 5), max_size=30)
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def output(tokens: Sequence[int], logprob: float = -1.0, text: str | None = None) -> Generated:
    return Generated(" ".join(WORDS[token] for token in tokens) if text is None else text, tokens, logprob)


def scores(name: str, **columns: list[list[Generated]]) -> MetricScores:
    by_number = {column: dict(enumerate(rows)) for column, rows in columns.items()}
    count = max(map(len, columns.values()))
    return scores_of(metric_of(name), by_number, [None] * count, dict.fromkeys(columns, next(iter(columns))))


def value(name: str, *rows: list[Generated]) -> float | None:
    """The value of one column; None where it has none."""
    [estimate] = scores(name, only=[*rows]).estimates.values()
    return None if math.isnan(estimate.value) else estimate.value


def distinct(outputs: list[list[int]], n: int) -> float | None:
    return value(f"distinct_{n}", [output(tokens) for tokens in outputs])


def self_bleu(texts: list[str]) -> float | None:
    return value("self_bleu", *([output([1], text=text)] for text in texts))


def test_no_ngram_spans_two_outputs() -> None:
    assert distinct([[1], [2]], 2) is None
    assert distinct([[1, 2], [2, 1]], 2) == 1


def test_repetition_by_hand() -> None:
    assert repeated_share([1, 2, 3, 4, 5, 6]) == 0
    assert repeated_share([7] * 8) == 1 - 1 / 5
    # 1234 2341 3412 4123 1234: four of five are new
    assert repeated_share([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)
    assert repeated_share([1, 2, 3]) is None
    rows = ([output([7] * 8)], [output([1, 2, 3, 4, 5])], [output([1])])
    assert value("repetition", *rows) == pytest.approx(0.4)


@given(st.lists(TOKENS, min_size=2, max_size=6))
def test_pseudo_values_are_those_of_the_jackknife(rows: list[list[int]]) -> None:
    """From the value without each row, computed anew; their mean is the value itself."""
    metric, outputs = metric_of("distinct_2"), [[output(tokens)] for tokens in rows]
    whole = metric.of(outputs)
    if math.isnan(whole):
        return
    count = len(rows)
    without = [metric.of([*outputs[:place], *outputs[place + 1 :]]) for place in range(count)]
    pseudo = [whole if math.isnan(part) else count * whole - (count - 1) * part for part in without]
    found = metric.sums_of(outputs)[:, 0]
    assert found.mean() == pytest.approx(whole)
    assert np.diff(found) == pytest.approx(np.diff(pseudo))


def test_perplexity_by_hand() -> None:
    half_and_eighth = math.log(1 / 2) + math.log(1 / 8)  # the geometric mean is 1/4
    assert value("output_perplexity", [output([1, 2], half_and_eighth)]) == pytest.approx(4)
    assert value("output_perplexity", [output([1, 2, 3], 0.0)]) == 1
    assert value("output_perplexity", [output([], 0.0)]) is None
    assert value("output_perplexity", [output([1], -1e6)]) == math.inf
    # Every token counts the same: 24 nats over 8 tokens.
    assert value("output_perplexity", [output([5] * 5, -20)], [output([6] * 3, -4)]) == pytest.approx(
        math.exp(3)
    )


def test_likelihoods_by_hand() -> None:
    rows = ([output([1, 2, 3, 4], -2.0), output([1], -1.0)], [output([1, 2, 3], -4.0)])
    assert value("output_logprob", *rows) == pytest.approx(-7 / 3)
    assert value("token_logprob", *rows) == pytest.approx(-7 / 8)


def test_texts_are_compared_over_the_same_length() -> None:
    """Of each question as many outputs count, and as many tokens, as every column has."""
    greedy = [[output([1, 2, 3, 4])], [output([1, 2, 3, 4])]]
    mine = [[output([5, 5, 5, 5, 5]), output([9, 8])], [output([6, 7, 8])]]
    found = scores("distinct_1", greedy=greedy, mine=mine).estimates
    assert found["greedy"].value == pytest.approx(4 / 7)
    assert found["mine"].value == pytest.approx(4 / 7)
    assert scores("repetition", greedy=greedy, mine=mine).estimates["mine"].value == 0
    alone = scores("distinct_1", mine=mine).estimates["mine"].value
    assert alone == pytest.approx(5 / 7)  # 55, 98 | 678: outputs of a question are of one length, too


def test_self_bleu_is_among_samples_where_every_column_has_several() -> None:
    same, apart = output([1, 2, 3, 4, 5]), output([6, 7, 8, 9, 0])
    twice = [[same, same], [same, apart]]
    among_samples = scores("self_bleu", twice=twice).estimates["twice"].value
    assert 50 <= among_samples < 60  # the mean of 100 and of next to nothing
    found = scores("self_bleu", twice=twice, once=[[same], [same]]).estimates
    assert found["twice"].value == pytest.approx(100)  # the first of each question


@pytest.mark.parametrize(
    ("texts", "expected", "tolerance"),
    [
        # Each against the other: 3 of 4 words, 2 of 3 pairs, 1 of 2 triples; of its one run of four none,
        # which counts as half of one (exponential smoothing). Both have four words: no brevity penalty.
        (["a b c d", "a b c e"], 100 * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** (1 / 4), 1e-6),
        (["one two", "one two"], 100, 1e-6),  # no triples, which must not count as none in common
        (["a b c d e f", "g h i j k l"], 0, 10),
        (
            ["a b c d e f g", "a b c d e f g", "t u v w x y z"],
            200 / 3,
            5,
        ),  # the mean of 100, 100 and next to 0
    ],
)
def test_self_bleu(texts: list[str], expected: float, tolerance: float) -> None:
    assert self_bleu(texts) == pytest.approx(expected, abs=tolerance)


def test_self_bleu_needs_two_texts_with_words() -> None:
    assert self_bleu(["alone"]) is None
    assert self_bleu(["alone", "", " \n"]) is None
    assert self_bleus([]) == []


def test_a_chinese_letter_is_a_word() -> None:
    """Without spaces the whole text would be one word, and nothing of it shared."""
    assert (self_bleu(["今天天气很好我们去公园", "今天天气很好我们去海边"]) or 0) > 60


def test_self_bleu_of_many_texts_takes_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "LARGEST_SET", 2)
    assert self_bleu(["a b c d e", "a b c d e", "v w x y z"]) == pytest.approx(100)


def test_the_metrics_need_no_references_and_stand_last() -> None:
    metrics = [*map(metric_of, METRIC_NAMES)]
    assert tuple(metric.name for metric in metrics) == METRIC_NAMES
    assert tuple(metric.name for metric in metrics if metric.needs == "outputs") == REFERENCE_FREE
    assert not any(a.title == b.title for a, b in combinations(metrics, 2))
