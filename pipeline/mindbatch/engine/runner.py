"""What the engine asks of a model, whoever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mindbatch.engine.scheduler import Step


class StepOutput(Protocol):
    """The model's answer to one step of T tokens."""

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits [len(tokens), vocabulary] that follow the given tokens, counted from 0 in step order."""
        ...

    def hidden(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Hidden states [len(tokens), hidden size] after the last norm, of the same tokens."""
        ...


class Runner(Protocol):
    """Runs steps; its cache holds the keys and values of the blocks that the scheduler hands out."""

    vocab_size: int

    def run(self, step: Step) -> StepOutput:
        """Copies the step's blocks, computes its tokens and writes them to the cache."""
        ...
