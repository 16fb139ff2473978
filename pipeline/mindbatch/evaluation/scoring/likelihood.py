"""Metrics of given texts: which of several continuations is the likeliest, and how likely a text is."""

from typing import ClassVar

import numpy as np

from mindbatch.evaluation.scoring.metric import ChoiceScores, FloatArray, MeanMetric, Metric, TextLikelihood


class Accuracy(MeanMetric[ChoiceScores]):
    """The share of rows whose likeliest continuation is the right one; the first of equals."""

    title = "Accuracy"
    needs = "choices"
    is_right_or_wrong = True

    def score(self, sample: ChoiceScores) -> float:
        return float(int(np.argmax(sample.logprobs)) == sample.correct)


class NormalisedAccuracy(MeanMetric[ChoiceScores]):
    """As `acc`, of the log-probability per byte, so that long continuations are not behind.

    Gao et al., lm-evaluation-harness: acc_norm.
    """

    title = "Accuracy by bytes"
    needs = "choices"
    is_right_or_wrong = True

    def score(self, sample: ChoiceScores) -> float:
        lengths = np.maximum(np.array(sample.lengths, np.float64), 1.0)
        return float(int(np.argmax(np.array(sample.logprobs) / lengths)) == sample.correct)


class _PerUnit(Metric[TextLikelihood]):
    """exp of the mean negative log-probability of a unit."""

    needs = "likelihood"
    best = "low"
    scale = 0.0
    unit: ClassVar[str]

    def sums(self, sample: TextLikelihood) -> tuple[float, ...]:
        return -sample.logprob, float(getattr(sample, self.unit))

    def value(self, sums: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(super().value(sums)))


class Perplexity(_PerUnit):
    """exp(-log-probability / tokens) of all rows together; comparable between models of one tokenizer."""

    title = "Perplexity"
    unit = "num_tokens"


class WordPerplexity(_PerUnit):
    """Perplexity per word, which does not depend on the tokenizer."""

    title = "Perplexity per word"
    unit = "num_words"


class BytePerplexity(_PerUnit):
    """Perplexity per byte of UTF-8."""

    title = "Perplexity per byte"
    unit = "num_bytes"


class BitsPerByte(_PerUnit):
    """-log2 of the probability, per byte of UTF-8."""

    title = "Bits per byte"
    unit = "num_bytes"

    def value(self, sums: FloatArray) -> FloatArray:
        return np.asarray(Metric.value(self, sums) / np.log(2.0))
