"""What a step is to the processes that compute it, and what they give back: plain arrays, no scheduling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mindbatch.kernels.step import IntArray

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class StepInputs:
    """One step as every rank of a model computes it.

    graph: the kind of step, as in `StepShape`.
    arrays: what the graph takes.
    copies: (source, destination) of the cache blocks that are copied before.
    num_tokens: without padding.
    with_logits: whether the head is in the graph, because the logits of all tokens are wanted.
    """

    graph: str
    arrays: tuple[IntArray, ...]
    copies: tuple[tuple[int, int], ...]
    num_tokens: int
    with_logits: bool


class StepValues(NamedTuple):
    """Hidden states [T, hidden size] of a step with its padding, and logits [T, vocabulary] or none."""

    hidden: FloatArray
    logits: FloatArray | None = None


class ModelOutput:
    """See `StepOutput`; logits that did not come along are computed for the tokens that are asked for."""

    def __init__(self, values: StepValues, project: Callable[[FloatArray], FloatArray]) -> None:
        """`project`: hidden states [S, hidden size] to logits [S, vocabulary]."""
        self._hidden, self._logits = values
        self._project = project

    def logits(self, tokens: Sequence[int]) -> FloatArray:
        """See `StepOutput.logits`."""
        if self._logits is None:
            return self._project(self._hidden[np.asarray(tokens, np.intp)])
        if list(tokens) == list(range(len(tokens))):
            return self._logits[: len(tokens)]
        return self._logits[np.asarray(tokens, np.intp)]

    def hidden(self, tokens: Sequence[int]) -> FloatArray:
        """See `StepOutput.hidden`."""
        return self._hidden[np.asarray(tokens, np.intp)]
