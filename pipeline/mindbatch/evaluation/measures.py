"""The measures as reports show them: their names, what they mean and how their numbers are written."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mindbatch.evaluation.comparison import Metrics

MISSING = "-"


@dataclass(frozen=True)
class Measure:
    """One column of the table; title and meaning are for the page. field: of `Metrics`. origin: where
    its bars begin."""

    field: str
    heading: str
    title: str
    meaning: str
    digits: str
    origin: float = 0.0

    def value(self, metrics: Metrics) -> float | None:
        """The number itself."""
        found: float | None = getattr(metrics, self.field)
        return found

    def written(self, value: float | None) -> str:
        """The number for people."""
        if value is None:
            return MISSING
        return format(value, self.digits) if math.isfinite(value) else "infinite"

    def shown(self, metrics: Metrics) -> str:
        """The number of a strategy for people."""
        return self.written(self.value(metrics))


MEASURES = (
    Measure(
        "perplexity",
        "perplexity",
        "Perplexity under the model",
        "From 1, certainty. Shorter: the model finds the text likelier, which does not make it good.",
        ".2f",
        origin=1.0,
    ),
    Measure(
        "logprob",
        "log-prob",
        "Log-probability of an output",
        "Mean sum over an output's tokens, in nats. Shorter: likelier as a whole.",
        ".1f",
    ),
    Measure("logprob_per_token", "per token", "Log-probability per token", "In nats.", ".3f"),
    Measure(
        "distinct_1",
        "distinct-1",
        "Distinct-1",
        "Share of different tokens among all tokens. Longer: more varied.",
        ".3f",
    ),
    Measure(
        "distinct_2",
        "distinct-2",
        "Distinct-2",
        "Share of different pairs of tokens among all pairs. Longer: more varied.",
        ".3f",
    ),
    Measure(
        "distinct_3",
        "distinct-3",
        "Distinct-3",
        "Share of different runs of three tokens. Longer: more varied.",
        ".3f",
    ),
    Measure(
        "self_bleu",
        "self-BLEU",
        "Self-BLEU",
        "How much each text is like the others, 0 to 100. Shorter: more different texts.",
        ".1f",
    ),
    Measure(
        "repetition",
        "repetition",
        "Repetition within an output",
        "Share of runs of four tokens that stood before in the same output. Shorter: fewer loops.",
        ".3f",
    ),
    Measure(
        "tokens_per_second",
        "tokens/s",
        "Tokens per second",
        "Tokens returned, by the wall time of the strategy's whole run. Longer: faster.",
        ",.0f",
    ),
    Measure("num_tokens", "tokens", "Tokens returned", "Of all outputs.", ",d"),
)
PLOTTED = tuple(measure for measure in MEASURES if measure.field not in ("logprob_per_token", "num_tokens"))
