"""The measures as reports show them: their names, what they mean and how their numbers are written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mindbatch.evaluation.measured import Metrics
from mindbatch.io.amounts import decimal

MISSING = "-"


@dataclass(frozen=True)
class Measure:
    """One column of the table; title and meaning are for the page.

    field: of `Metrics`. best: which end of it is the better one, and toward: what that end means.
    """

    field: str
    heading: str
    title: str
    meaning: str
    digits: str
    best: Literal["low", "high"] = "high"
    toward: str = ""

    def value(self, metrics: Metrics) -> float | None:
        """The number itself."""
        found: float | None = getattr(metrics, self.field)
        return found

    def written(self, value: float | None) -> str:
        """The number for people."""
        if value is None:
            return MISSING
        return decimal(value, self.digits) if math.isfinite(value) else "infinite"

    def shown(self, metrics: Metrics) -> str:
        """The number of a strategy for people."""
        return self.written(self.value(metrics))


MEASURES = (
    Measure(
        "perplexity",
        "perplexity",
        "Perplexity under the model",
        "From 1, certainty. Low: the model finds the text likely, which does not make it good.",
        ".2f",
        "low",
        "likelier",
    ),
    Measure(
        "logprob",
        "log-prob",
        "Log-probability of an output",
        "Mean sum over an output's tokens, in nats; long outputs are less likely as a whole.",
        ".1f",
        toward="likelier",
    ),
    Measure(
        "logprob_per_token", "per token", "Log-probability per token", "In nats.", ".3f", toward="likelier"
    ),
    Measure(
        "distinct_1",
        "distinct-1",
        "Distinct-1",
        "Share of different tokens among all tokens, of texts of the same length.",
        ".3f",
        toward="more varied",
    ),
    Measure(
        "distinct_2",
        "distinct-2",
        "Distinct-2",
        "Share of different pairs of tokens among all pairs, of texts of the same length.",
        ".3f",
        toward="more varied",
    ),
    Measure(
        "distinct_3",
        "distinct-3",
        "Distinct-3",
        "Share of different runs of three tokens, of texts of the same length.",
        ".3f",
        toward="more varied",
    ),
    Measure(
        "self_bleu",
        "self-BLEU",
        "Self-BLEU",
        "How much each text is like the others, 0 to 100.",
        ".1f",
        "low",
        "more different texts",
    ),
    Measure(
        "repetition",
        "repetition",
        "Repetition within an output",
        "Share of runs of four tokens that stood before in the same output, of texts of the same length.",
        ".3f",
        "low",
        "fewer loops",
    ),
    Measure(
        "tokens_per_second",
        "tokens/s",
        "Tokens per second",
        "Tokens returned, by the wall time of the strategy's whole run.",
        ",.0f",
        toward="faster",
    ),
    Measure("num_tokens", "tokens", "Tokens returned", "Of all outputs.", ",.0f"),
)
PLOTTED = tuple(measure for measure in MEASURES if measure.field not in ("logprob_per_token", "num_tokens"))
