"""Metrics of texts beside reference texts: BLEU and ROUGE, of words or of Chinese."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mindbatch.evaluation.scoring.matching import best_of
from mindbatch.evaluation.scoring.metric import Answer, FloatArray, MeanMetric, Metric
from mindbatch.prompts.chinese_words import words_of

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

ORDERS = 4
_NO_LETTERS = re.compile(r"[^a-z0-9]+")
_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")


class Bleu(Metric[Answer]):
    """BLEU of all answers together, 0 to 100: sacrebleu's, with words as "13a" divides them.

    Papineni et al. 2002; Post 2018, "A Call for Clarity in Reporting BLEU Scores".
    """

    name = "bleu"
    title = "BLEU"
    needs = "generation"
    scale = 100.0
    tokenize: ClassVar[str] = "13a"

    def sums(self, sample: Answer) -> tuple[float, ...]:
        found = _bleu(self.tokenize).corpus_score([sample.text or ""], [[each] for each in sample.references])
        return (
            *map(float, found.counts),
            *map(float, found.totals),
            float(found.sys_len),
            float(found.ref_len),
        )

    def value(self, sums: FloatArray) -> FloatArray:
        flat = sums.reshape(-1, sums.shape[-1])
        return np.array([self._value(row) for row in flat]).reshape(sums.shape[:-1])

    def _value(self, sums: FloatArray) -> float:
        counts, totals, (length, wanted) = sums[:ORDERS], sums[ORDERS : 2 * ORDERS], sums[2 * ORDERS :]
        right, all_of_them = ([int(number) for number in numbers] for numbers in (counts, totals))
        score = _bleu_class().compute_bleu(right, all_of_them, int(length), int(wanted), smooth_method="exp")
        return float(score.score)


class ChineseBleu(Bleu):
    """BLEU with every Chinese character as a word."""

    name = "bleu_zh"
    title = "BLEU (Chinese)"
    tokenize = "zh"


def _bleu_class() -> type[BLEU]:
    from sacrebleu.metrics.bleu import BLEU  # brings an XML library along

    return BLEU


@cache
def _bleu(tokenize: str) -> Any:
    return _bleu_class()(tokenize=tokenize)


class _Rouge(MeanMetric[Answer]):
    """F1 of what answer and reference have in common; Lin 2004, "ROUGE: A Package for Automatic Evaluation".

    Words are runs of letters and digits in small letters, without stemming, as rouge-score has them by
    default; a Chinese text is divided by jieba, which is what reports on ADGEN do.
    """

    needs = "generation"

    def score(self, sample: Answer) -> float:
        return best_of(sample, lambda text, reference: self.f1(rouge_words(text), rouge_words(reference)))

    def f1(self, found: Sequence[str], wanted: Sequence[str]) -> float:
        """Computes the F1 of the words of an answer and of a reference."""
        raise NotImplementedError


class _RougeN(_Rouge):
    order: ClassVar[int]

    def f1(self, found: Sequence[str], wanted: Sequence[str]) -> float:
        mine, theirs = (Counter(_ngrams(words, self.order)) for words in (found, wanted))
        return _harmonic((mine & theirs).total(), mine.total(), theirs.total())


class Rouge1(_RougeN):
    """F1 of single words."""

    name = "rouge1"
    title = "ROUGE-1"
    order = 1


class Rouge2(_RougeN):
    """F1 of pairs of words."""

    name = "rouge2"
    title = "ROUGE-2"
    order = 2


class RougeL(_Rouge):
    """F1 of the longest common subsequence."""

    name = "rougeL"
    title = "ROUGE-L"

    def f1(self, found: Sequence[str], wanted: Sequence[str]) -> float:
        return _harmonic(longest_common(found, wanted), len(found), len(wanted))


def rouge_words(text: str) -> list[str]:
    """The words of a text in small letters; those of a text with Chinese characters as jieba divides them."""
    if _HAN.search(text):
        return [word.lower() for word in words_of(text) if word.strip()]
    return [word for word in _NO_LETTERS.split(text.lower()) if word]


def longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    lengths = [0] * (len(second) + 1)
    for word in first:
        diagonal = 0
        for place, other in enumerate(second, 1):
            above = lengths[place]
            lengths[place] = diagonal + 1 if word == other else max(above, lengths[place - 1])
            diagonal = above
    return lengths[-1]


def _ngrams(words: Sequence[str], order: int) -> Iterable[tuple[str, ...]]:
    return zip(*(islice(words, start, None) for start in range(order)), strict=False)


def _harmonic(common: int, found: int, wanted: int) -> float:
    """2 P R / (P + R), 0 where there is nothing to compare."""
    return 2 * common / (found + wanted) if common else 0.0
