"""Measures of generated text: how varied, how repetitive, and how likely under the model it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

REPEATED_NGRAM = 4
LARGEST_SET = 100
"""Texts of a set beyond this are left out of self-BLEU, whose work grows with the square of their number."""

Tokens = Sequence[int]


def ngrams(tokens: Tokens, n: int) -> list[tuple[int, ...]]:
    """The n-grams of `tokens` in order; none when there are fewer than n tokens."""
    return list(zip(*(islice(tokens, start, None) for start in range(n)), strict=False))


def distinct(outputs: Sequence[Tokens], n: int) -> float | None:
    """distinct-n: the share of different n-grams among all n-grams of all outputs; 1 is the most varied.

    No n-gram spans two outputs. It falls with the number of tokens: compare it between outputs of about the
    same length and number. None when no output has n tokens. Li et al. 2016, "A Diversity-Promoting Objective
    Function for Neural Conversation Models", with the model's tokens as words.
    """
    return distinct_share([ngrams(output, n) for output in outputs])


def distinct_share(parts: Sequence[Sequence[tuple[int, ...]]]) -> float | None:
    """The share of different n-grams among all those of `parts`; None when there are none."""
    count = sum(map(len, parts))
    return len(set().union(*parts)) / count if count else None


def repetition(output: Tokens, n: int = REPEATED_NGRAM) -> float | None:
    """seq-rep-n: the share of an output's n-grams that stood in it before; 0 is no repetition.

    None when the output has fewer than n tokens. Welleck et al. 2020, "Neural Text Generation with
    Unlikelihood Training", with the model's tokens as words.
    """
    every = ngrams(output, n)
    return 1 - len(set(every)) / len(every) if every else None


def perplexity(logprob: float, num_tokens: int) -> float | None:
    """exp(-logprob / num_tokens): of tokens whose natural log-probabilities under the model sum to `logprob`.

    Of several outputs together it is that of their sums, so that each token counts the same. None without
    tokens. Jelinek et al. 1977, "Perplexity - a measure of the difficulty of speech recognition tasks".
    """
    if num_tokens == 0:
        return None
    try:
        return math.exp(-logprob / num_tokens)
    except OverflowError:
        return math.inf


def self_bleu(texts: Sequence[str]) -> float | None:
    """The mean BLEU of each text against all the others, 0 to 100; 100 is all alike.

    Texts without a word are left out, and those after the first LARGEST_SET. None for fewer than two. Zhu et
    al. 2018, "Texygen: A Benchmarking Platform for Text Generation Models", with sacrebleu's sentence BLEU of
    up to 4-grams (Post 2018), of which those that a text is too short for do not count.
    """
    kept = [text for text in texts if text.strip()][:LARGEST_SET]
    if len(kept) < 2:
        return None
    bleu = _bleu()
    return fmean(
        bleu.sentence_score(text, [*kept[:position], *kept[position + 1 :]]).score
        for position, text in enumerate(kept)
    )


@cache
def _bleu() -> BLEU:
    from sacrebleu.metrics.bleu import BLEU  # brings an XML library along; only a comparison pays for it

    # "zh" splits as "13a" does and makes each Chinese character a word.
    return BLEU(tokenize="zh", effective_order=True)


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of the values that there are; None when there are none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
