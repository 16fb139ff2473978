"""Metrics of texts, beside the libraries that are the reference."""

from collections.abc import Sequence
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU

from mindbatch.evaluation import metric_of
from mindbatch.evaluation.answers import longest_common, rouge_words
from mindbatch.evaluation.metric import Answer


def value(name: str, rows: Sequence[Any]) -> float:
    """The value of rows of one sample each."""
    return metric_of(name).of([(row,) for row in rows])


# Reference, answer, and rouge1, rouge2, rougeL (F) of rouge-score 0.1.2.
ROUGE = [
    ("the cat sat on the mat", "the cat lay on a mat today", (8 / 13, 2 / 11, 8 / 13)),
    ("A quick brown fox, it's 3 PM!", "quick, brown foxes at 3 pm", (4 / 7, 1 / 3, 4 / 7)),
    ("one two three four", "four three two one", (1.0, 0.0, 0.25)),
    ("x", "y", (0.0, 0.0, 0.0)),
    ("Hello-World foo_bar", "hello world foo bar", (1.0, 1.0, 1.0)),
]


@pytest.mark.parametrize(("reference", "text", "scores"), ROUGE)
def test_rouge_is_that_of_rouge_score(reference: str, text: str, scores: tuple[float, ...]) -> None:
    row = Answer(text, (reference,))
    assert [value(name, [row]) for name in ("rouge1", "rouge2", "rougeL")] == pytest.approx(scores)


@pytest.mark.slow
def test_rouge_of_chinese_divides_words_by_jieba() -> None:
    assert rouge_words("这件衬衫的款式非常的宽松") == ["这件", "衬衫", "的", "款式", "非常", "的", "宽松"]
    assert value("rouge1", [Answer("衬衫宽松", ("宽松衬衫",))]) == 1.0
    assert value("rougeL", [Answer("衬衫宽松", ("宽松衬衫",))]) == 0.5


@pytest.mark.parametrize(("name", "tokenize"), [("bleu", "13a"), ("bleu_zh", "zh")])
def test_bleu_of_sums_is_that_of_the_corpus(name: str, tokenize: str) -> None:
    texts = ["the cat sat on a mat", "", "这件衬衫非常宽松。", "a b c d e"]
    references = [["the cat sat on the mat", "a cat"], ["nothing"], ["这件衬衫很宽松。"], ["a b c d f"]]
    rows = [Answer(text, tuple(each)) for text, each in zip(texts, references, strict=True)]
    streams = [[each[min(number, len(each) - 1)] for each in references] for number in range(2)]
    expected = BLEU(tokenize=tokenize).corpus_score(texts, streams).score
    assert value(name, rows) == pytest.approx(expected)
    assert value(name, rows[:1]) > 30 > value(name, rows[1:2])


def test_the_longest_common_subsequence() -> None:
    assert longest_common("abcbdab", "bdcaba") == 4
    assert longest_common("", "abc") == 0


@pytest.mark.parametrize(
    ("text", "references", "exact", "squad", "f1"),
    [
        (" seven \n", ("seven",), 1, 1, 1.0),
        ("The Eiffel Tower!", ("Eiffel tower", "Paris"), 0, 1, 1.0),
        ("in the city of Paris", ("Paris", "city"), 0, 0, 0.4),
        (None, ("",), 0, 0, 0.0),
        ("", ("",), 1, 1, 1.0),
        ("the", ("",), 0, 1, 1.0),
        ("x", (), 0, 0, 0.0),
    ],
)
def test_matches(text: str | None, references: tuple[str, ...], exact: int, squad: int, f1: float) -> None:
    row = Answer(text, references)
    found = [value(name, [row]) for name in ("exact_match", "squad_em", "f1")]
    assert found == pytest.approx([exact, squad, f1])
