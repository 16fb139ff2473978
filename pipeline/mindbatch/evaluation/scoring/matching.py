"""Answers that are right or wrong, and how far their words are those of a reference."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from mindbatch.evaluation.scoring.metric import Answer, MeanMetric

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class ExactMatch(MeanMetric[Answer]):
    """The share of answers that are a reference, but for white space around them."""

    name = "exact_match"
    title = "Exact match"
    needs = "generation"
    is_right_or_wrong = True

    def score(self, sample: Answer) -> float:
        return float(
            sample.text is not None and sample.text.strip() in {each.strip() for each in sample.references}
        )


class QuasiExactMatch(MeanMetric[Answer]):
    """The share of answers whose words are those of a reference, as SQuAD compares them.

    Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250: case, punctuation, articles and white space are
    left out.
    """

    name = "squad_em"
    title = "Exact match (SQuAD)"
    needs = "generation"
    is_right_or_wrong = True

    def score(self, sample: Answer) -> float:
        return best_of(sample, lambda text, reference: float(words(text) == words(reference)))


class WordF1(MeanMetric[Answer]):
    """The harmonic mean of precision and recall of an answer's words, of the best reference (SQuAD)."""

    name = "f1"
    title = "F1 of words"
    needs = "generation"

    def score(self, sample: Answer) -> float:
        return best_of(sample, lambda text, reference: f1(words(text), words(reference)))


def best_of(row: Answer, score: Callable[[str, str], float]) -> float:
    """The score of the reference that the answer is nearest to; 0 without an answer."""
    if row.text is None:
        return 0.0
    return max((score(row.text, reference) for reference in row.references), default=0.0)


def words(text: str) -> list[str]:
    """The words that SQuAD compares: in small letters, without punctuation and English articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    """2 P R / (P + R) of two bags of words; 1 of two that are empty, 0 where one is."""
    if not found or not wanted:
        return float(found == wanted)
    common = (Counter(found) & Counter(wanted)).total()
    return 2 * common / (len(found) + len(wanted))
