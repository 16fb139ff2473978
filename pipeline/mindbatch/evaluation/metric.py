"""Metrics as values: sums over rows, and a value of any set of rows."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mindbatch.io.amounts import decimal

DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """A generated text beside what would be right.

    text: what the task reads out of the output; None where there is nothing of the kind, which is wrong.
    references: texts of which any one is right.
    """

    text: str | None
    references: tuple[str, ...]


@dataclass(frozen=True)
class ChoiceScores:
    """Likelihood of each of several continuations.

    logprobs: in nats, of each continuation as a whole. lengths: of each, in bytes of UTF-8. correct: the
    number of the right one.
    """

    logprobs: tuple[float, ...]
    lengths: tuple[int, ...]
    correct: int


@dataclass(frozen=True)
class TextLikelihood:
    """Likelihood of a given text.

    logprob: in nats, of all of its tokens that were scored.
    """

    logprob: float
    num_tokens: int
    num_words: int
    num_bytes: int


FACTS = ("finish_reason", "score", "rank")
"""Further fields of a generated text that reports show."""


@dataclass(frozen=True)
class Generated:
    """One generated text, of those that a request returns.

    logprob: in nats, the sum over its tokens under the model's raw logits. facts: FACTS, None where unknown.
    """

    text: str
    token_ids: Sequence[int] = ()
    logprob: float = float("nan")
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


Needs = Literal["generation", "outputs", "choices", "likelihood"]
Samples = Sequence[Any]
"""The samples of a question: one or more of what a metric measures."""
Sums = Callable[[Any], Sequence[float]]
"""The numbers that a sample of a row adds to the sums; as many for every one."""


def ratio(sums: DoubleArray) -> DoubleArray:
    """Divides sums [..., k], the first by the second, to means [...]."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums[..., 0] / sums[..., 1])


@dataclass(frozen=True)
class Metric:
    """A measure of rows whose value is a function of sums over them.

    So any resample of the rows is measured by adding the sums of its rows; no text is looked at twice.

    meaning: in a line. sums_of: the sums of each row, [rows, k]. value: the values [...] of sums [..., k].
    needs: what it is measured of: answers read out of generated texts, these texts themselves, the likelihood
    of choices, or that of a given text. scale: of the largest value, 1 or 100; 0 where there is none.
    toward: what a better value means. digits: how a value is written that is no share.
    comparable: takes the part of the rows of several systems, in one order, that may be compared; None: all
    of it, so that rows are measured one at a time.
    """

    name: str
    title: str
    meaning: str
    sums_of: Callable[[Iterable[Samples]], DoubleArray]
    value: Callable[[DoubleArray], DoubleArray] = ratio
    needs: Needs = "generation"
    best: Literal["high", "low"] = "high"
    scale: float = 1.0
    is_right_or_wrong: bool = False
    """True if a row is right or wrong and the value the share of the right ones."""
    is_of_rows: bool = True
    """False if a row has no value of its own."""
    toward: str = ""
    digits: str = ".2f"
    comparable: Callable[[Sequence[Sequence[Samples]]], Sequence[Sequence[Samples]]] | None = None

    def of(self, rows: Sequence[Samples]) -> float:
        """Measures rows; not a number without any."""
        return float(self.value(self.sums_of(rows).sum(axis=0))) if rows else float("nan")

    def text(self, value: float | None, sign: str = "") -> str:
        """Formats a value: shares as percentages, all else with the digits of the metric."""
        if value is None or math.isnan(value):
            return "-"
        if not math.isfinite(value):
            return "infinite"
        return decimal(value, f"{sign}.1%" if self.scale == 1.0 else f"{sign}{self.digits}")


def by_sample(sums: Sums) -> Callable[[Iterable[Samples]], DoubleArray]:
    """Sums of rows whose samples add theirs: a question counts once, however many samples it has."""
    return lambda rows: np.array([np.sum([*map(sums, row)], axis=0) for row in rows], np.float64)


def metric(title: str, **properties: Any) -> Callable[[Sums], Metric]:
    """Makes a metric of the function of a sample's sums, whose name and meaning it takes."""
    return lambda sums: Metric(
        sums.__name__, title, (sums.__doc__ or "").partition("\n")[0], by_sample(sums), **properties
    )


def mean_metric(title: str, **properties: Any) -> Callable[[Callable[[Any], float]], Metric]:
    """Makes a metric, as `metric` does, of a function that scores a sample from 0 to `scale`."""

    def make(score: Callable[[Any], float]) -> Metric:
        @wraps(score)
        def sums(sample: Any) -> tuple[float, float]:
            return score(sample), 1.0

        return metric(title, **properties)(sums)

    return make
