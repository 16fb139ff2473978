"""Metrics of texts themselves, given or generated: how likely under the model, how varied, how repetitive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mindbatch.evaluation.metric import (
    ChoiceScores,
    DoubleArray,
    Generated,
    Metric,
    TextLikelihood,
    mean_metric,
    metric,
    ratio,
)

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

REPEATED_NGRAM = 4
LARGEST_SET = 100
"""Texts of a set beyond this are left out of self-BLEU, whose work grows with the square of their number."""

Outputs = Sequence[Generated]
Item = TypeVar("Item")


@mean_metric("Accuracy", needs="choices", is_right_or_wrong=True)
def acc(sample: ChoiceScores) -> float:
    """The share of rows whose likeliest continuation is the right one; the first of equals."""
    return float(int(np.argmax(sample.logprobs)) == sample.correct)


@mean_metric("Accuracy by bytes", needs="choices", is_right_or_wrong=True)
def acc_norm(sample: ChoiceScores) -> float:
    """As `acc`, of the log-probability per byte, so that long continuations are not behind.

    Gao et al., lm-evaluation-harness: acc_norm.
    """
    lengths = np.maximum(np.array(sample.lengths, np.float64), 1.0)
    return float(int(np.argmax(np.array(sample.logprobs) / lengths)) == sample.correct)


def exp_ratio(sums: DoubleArray) -> DoubleArray:
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(ratio(sums)))


def log2_ratio(sums: DoubleArray) -> DoubleArray:
    return np.asarray(ratio(sums) / np.log(2.0))


_perplexity = partial(metric, best="low", scale=0.0, value=exp_ratio)
_of_outputs = partial(metric, needs="outputs", scale=0.0, toward="likelier")


@_perplexity("Perplexity", needs="likelihood")
def perplexity(sample: TextLikelihood) -> tuple[float, float]:
    """exp(-log-probability / tokens) of all rows together; comparable between models of one tokenizer."""
    return -sample.logprob, float(sample.num_tokens)


@_perplexity("Perplexity per word", needs="likelihood")
def word_perplexity(sample: TextLikelihood) -> tuple[float, float]:
    """Perplexity per word, which does not depend on the tokenizer."""
    return -sample.logprob, float(sample.num_words)


@_perplexity("Perplexity per byte", needs="likelihood")
def byte_perplexity(sample: TextLikelihood) -> tuple[float, float]:
    """Perplexity per byte of UTF-8."""
    return -sample.logprob, float(sample.num_bytes)


@_perplexity("Bits per byte", needs="likelihood", value=log2_ratio)
def bits_per_byte(sample: TextLikelihood) -> tuple[float, float]:
    """-log2 of the probability, per byte of UTF-8."""
    return -sample.logprob, float(sample.num_bytes)


@_perplexity("Perplexity of the outputs", needs="outputs", toward="likelier")
def output_perplexity(sample: Generated) -> tuple[float, float]:
    """exp(-log-probability / tokens) of all tokens generated, under the model's raw logits; 1 is certainty.

    Low: the model finds the text likely, which does not make it good. Jelinek et al. 1977, "Perplexity - a
    measure of the difficulty of speech recognition tasks".
    """
    return -sample.logprob, float(sample.num_tokens)


@_of_outputs("Log-probability of an output", digits=".1f")
def output_logprob(sample: Generated) -> tuple[float, float]:
    """Mean sum of an output's log-probabilities, in nats; long outputs are less likely as a whole."""
    return sample.logprob, 1.0


@_of_outputs("Log-probability per token", digits=".3f")
def token_logprob(sample: Generated) -> tuple[float, float]:
    """Mean log-probability of a generated token, in nats."""
    return sample.logprob, float(sample.num_tokens)


def _of_same_length(systems: Sequence[Sequence[Outputs]]) -> list[list[Outputs]]:
    """Takes as much of each question as every column has.

    Distinct n-grams get rarer, and repeated ones more frequent, as a text gets longer.
    """
    cut = [_cut(rows) for rows in zip(*systems, strict=True)]
    return [[*rows] for rows in zip(*cut, strict=True)] if cut else [[] for _ in systems]


def _cut(rows: Sequence[Outputs]) -> list[Outputs]:
    """Cuts the outputs of a question in all columns to the fewest, each as long as the shortest."""
    count = min(map(len, rows))
    length = min((len(output.token_ids) for outputs in rows for output in outputs[:count]), default=0)
    return [
        [Generated(output.text, output.token_ids[:length], output.logprob) for output in outputs[:count]]
        for outputs in rows
    ]


@_of_outputs(
    "Repetition within an output", best="low", toward="fewer loops", digits=".3f", comparable=_of_same_length
)
def repetition(sample: Generated) -> tuple[float, float]:
    """Share of runs of four tokens that stood before in the same output, of texts of the same length.

    seq-rep-4 of Welleck et al. 2020, "Neural Text Generation with Unlikelihood Training", with the model's
    tokens as words.
    """
    share = repeated_share(sample.token_ids)
    return (0.0, 0.0) if share is None else (share, 1.0)


def _distinct(n: int, meaning: str) -> Metric:
    """distinct-n: the share of different n-grams among all n-grams of all outputs; 1 is the most varied.

    No n-gram spans two outputs. Li et al. 2016, "A Diversity-Promoting Objective Function for Neural
    Conversation Models", with the model's tokens as words.
    """
    return Metric(
        f"distinct_{n}",
        f"Distinct-{n}",
        meaning,
        partial(_distinct_sums, n),
        needs="outputs",
        scale=0.0,
        is_of_rows=False,
        toward="more varied",
        digits=".3f",
        comparable=_of_same_length,
    )


def _distinct_sums(n: int, rows: Sequence[Outputs]) -> DoubleArray:
    """Pseudo-values of the jackknife, whose mean is the value: n-grams are counted over all rows.

    Tukey 1958, "Bias and confidence in not quite large samples": n T - (n - 1) T without the row; here
    moved by the jackknife's correction of the bias, so that their mean is T itself.
    """
    parts = [Counter(gram for output in outputs for gram in ngrams(output.token_ids, n)) for outputs in rows]
    every = Counter[tuple[int, ...]]()
    for part in parts:
        every.update(part)
    num_grams, num_rows = every.total(), len(rows)
    if not num_grams:
        return np.zeros((num_rows, 2))
    whole = len(every) / num_grams
    pseudo = np.full(num_rows, whole)
    for row, part in enumerate(parts):
        only_here = sum(count == every[gram] for gram, count in part.items())
        if part.total() < num_grams:
            without = (len(every) - only_here) / (num_grams - part.total())
            pseudo[row] = num_rows * whole - (num_rows - 1) * without
    return np.stack([pseudo + (whole - pseudo.mean()), np.ones(num_rows)], axis=-1)


distinct_1 = _distinct(1, "Share of different tokens among all tokens, of texts of the same length.")
distinct_2 = _distinct(2, "Share of different pairs of tokens among all pairs, of texts of the same length.")
distinct_3 = _distinct(3, "Share of different runs of three tokens, of texts of the same length.")


def _of_several_samples(systems: Sequence[Sequence[Outputs]]) -> list[list[Outputs]]:
    """Takes all samples where every question has several in every column, else the first ones."""
    if all(len(outputs) > 1 for rows in systems for outputs in rows):
        return [[*rows] for rows in systems]
    return [[outputs[:1] for outputs in rows] for rows in systems]


def _self_bleu_sums(rows: Iterable[Outputs]) -> DoubleArray:
    """Self-BLEU among the samples of each question, if any has several, else among all questions.

    Zhu et al. 2018, "Texygen: A Benchmarking Platform for Text Generation Models", with sacrebleu's sentence
    BLEU of up to 4-grams (Post 2018), of which those that a text is too short for do not count.
    """
    texts = [[output.text for output in outputs] for outputs in rows]
    if any(len(group) > 1 for group in texts):
        known = [[score for score in self_bleus(group) if score is not None] for group in texts]
        scores = [float(np.mean(values)) if values else None for values in known]
    else:
        scores = self_bleus([group[0] if group else "" for group in texts])
    sums = [(0.0, 0.0) if score is None else (score, 1.0) for score in scores]
    return np.array(sums, np.float64).reshape(-1, 2)


self_bleu = Metric(
    "self_bleu",
    "Self-BLEU",
    "Mean BLEU of each text against the others, 0 to 100: how much they are like each other.",
    _self_bleu_sums,
    needs="outputs",
    best="low",
    scale=0.0,
    is_of_rows=False,
    toward="more different texts",
    digits=".1f",
    comparable=_of_several_samples,
)


def ngrams(tokens: Sequence[Item], n: int) -> list[tuple[Item, ...]]:
    """Lists the n-grams of `tokens` in order; none when there are fewer than n tokens."""
    return list(zip(*(islice(tokens, start, None) for start in range(n)), strict=False))


def repeated_share(tokens: Sequence[int]) -> float | None:
    """Share of the runs of REPEATED_NGRAM tokens that stood before; None when there are fewer tokens."""
    every = ngrams(tokens, REPEATED_NGRAM)
    return 1 - len(set(every)) / len(every) if every else None


def self_bleus(texts: Sequence[str]) -> list[float | None]:
    """BLEU of each text against all the others; None for texts without a word, those after the first
    LARGEST_SET, and where there are fewer than two."""
    kept = [number for number, text in enumerate(texts) if text.strip()][:LARGEST_SET]
    scores: list[float | None] = [None] * len(texts)
    if len(kept) > 1:
        for number in kept:
            others = [texts[other] for other in kept if other != number]
            scores[number] = bleu_by("zh", short=True).sentence_score(texts[number], others).score
    return scores


@cache
def bleu_by(tokenize: str, *, short: bool = False) -> BLEU:
    """BLEU of words as sacrebleu divides them: "13a"; or "zh", as it, and each Chinese character is a word.

    short: n-grams that a text is too short for do not count.
    """
    from sacrebleu.metrics.bleu import BLEU  # brings an XML library along; only these metrics pay for it

    return BLEU(tokenize=tokenize, effective_order=short)
