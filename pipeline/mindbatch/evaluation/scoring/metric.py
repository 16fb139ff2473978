"""Base of metrics: sums over rows, and a value of any set of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


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


Measured = TypeVar("Measured", Answer, ChoiceScores, TextLikelihood)


class Metric(ABC, Generic[Measured]):
    """A measure of rows whose value is a function of sums over them.

    So any resample of the rows is measured by adding the sums of its rows; no text is looked at twice.

    needs: what it is measured of: a generated text, the likelihood of choices, or that of a given text.
    scale: of the largest value, 1 or 100; 0 where there is none.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    needs: ClassVar[Literal["generation", "choices", "likelihood"]]
    best: ClassVar[Literal["high", "low"]] = "high"
    scale: ClassVar[float] = 1.0
    is_right_or_wrong: ClassVar[bool] = False
    """True if a row is right or wrong and the value the share of the right ones."""

    @abstractmethod
    def sums(self, row: Measured) -> tuple[float, ...]:
        """Computes the numbers that a row adds to the sums; as many for every row."""

    def value(self, sums: FloatArray) -> FloatArray:
        """The values [...] of sums [..., k]; here the mean of the first by the second."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(sums[..., 0] / sums[..., 1])

    def of(self, rows: Sequence[Measured]) -> float:
        """The value of rows; not a number without any."""
        return float(self.value(self.sums_of(rows).sum(axis=0))) if rows else float("nan")

    def sums_of(self, rows: Sequence[Measured]) -> FloatArray:
        """The sums of each row, [rows, k]."""
        return np.array([self.sums(row) for row in rows], np.float64)


class MeanMetric(Metric[Measured]):
    """The mean of a score of each row."""

    @abstractmethod
    def score(self, row: Measured) -> float:
        """Scores one row, from 0 to `scale`."""

    def sums(self, row: Measured) -> tuple[float, ...]:
        return self.score(row), 1.0
