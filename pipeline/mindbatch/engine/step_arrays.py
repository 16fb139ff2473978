"""Arrays of a step for the processes that compute it, and of what they return: no scheduling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mindbatch.kernels.step import IntArray, Logits

FloatArray = npt.NDArray[np.float32]
Project = Callable[[FloatArray, IntArray | None], Logits]
"""Hidden states [S, hidden size], and the slots [S] of their adapters if any, to their logits."""


@dataclass(frozen=True)
class StepInputs:
    """One step as every rank of a model computes it.

    graph: the kind of step, as in `StepShape`.
    arrays: what the graph takes.
    copies: (source, destination) of the cache blocks that are copied before.
    num_tokens: without padding.
    with_logits: whether the head is in the graph, because the logits of all tokens are wanted.
    adapter_loads: slots, and the names of the adapters that are loaded into them before.
    adapters: the slots of the tokens' adapters, for logits that are computed later; None without adapters.
    wanted: the tokens whose hidden states or logits may be asked for, in rising order; None for all.
    """

    graph: str
    arrays: tuple[IntArray, ...]
    copies: tuple[tuple[int, int], ...]
    num_tokens: int
    with_logits: bool
    adapters: IntArray | None = None
    adapter_loads: tuple[tuple[int, str], ...] = ()
    wanted: IntArray | None = None


class StepValues(NamedTuple):
    """Hidden states [T, hidden size] of a step with its padding, and their logits or none.

    tokens: those that the rows of `hidden` belong to, in rising order; None for all.
    """

    hidden: FloatArray
    logits: Logits | None = None
    tokens: IntArray | None = None


class RunnerOutput:
    """A `StepOutput` that computes logits of the tokens that are asked for, where they did not come along."""

    def __init__(self, values: StepValues, project: Project, adapters: IntArray | None = None) -> None:
        """`adapters`: see `StepInputs`."""
        self._hidden, self._logits, self._tokens = values
        self._project = project
        self._adapters = adapters

    def logits(self, tokens: Sequence[int]) -> FloatArray:
        return self.logits_and_summary(tokens).scores

    def logits_and_summary(self, tokens: Sequence[int]) -> Logits:
        if self._logits is None:
            chosen = np.asarray(tokens, np.intp)
            adapters = None if self._adapters is None else self._adapters[chosen]
            return self._project(self.hidden(tokens), adapters)
        if list(tokens) == list(range(len(tokens))):
            return self._logits.of(slice(len(tokens)))
        return self._logits.of(np.asarray(tokens, np.int32))

    def hidden(self, tokens: Sequence[int]) -> FloatArray:
        rows = np.asarray(tokens, np.intp)
        if self._tokens is not None:
            assert np.isin(rows, self._tokens).all(), "only wanted tokens are computed"
            rows = np.searchsorted(self._tokens, rows)
        return self._hidden[rows]
