"""Interface that the engine needs of a model, whoever computes it."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mindbatch.engine.step import Step
from mindbatch.kernels.step import Logits, StepInputs


class StepOutput(Protocol):
    """The model's answer to one step of T tokens."""

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits [len(tokens), vocabulary] that follow the given tokens, counted from 0 in step order."""
        ...

    def logits_and_summary(self, tokens: Sequence[int]) -> Logits:
        """Returns logits, and what the head knows of them."""
        return Logits(self.logits(tokens))

    def hidden(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Hidden states [len(tokens), hidden size] after the last norm, of the same tokens."""
        ...


class Runner(Protocol):
    """Runs steps; its cache holds the keys and values of the blocks that the scheduler hands out."""

    vocab_size: int

    def run(self, step: Step) -> StepOutput:
        """Copies the step's blocks, computes its tokens and writes them to the cache."""
        ...


class StageRunner(Runner, Protocol):
    """Runs the last of several pipeline stages; the others compute a step as soon as they are told of it.

    Steps are completed in the order in which they were announced. The blocks of a step are counted from
    `first_block` of the cache, so that several schedulers can share it.
    """

    def announce(self, step: Step, first_block: int = 0) -> StepInputs:
        """Tells the stages before this one of a step, and returns at once."""
        ...

    def complete(self, inputs: StepInputs) -> StepOutput:
        """Computes this stage's part of a step that was announced."""
        ...


class DryRunner:
    """Computes nothing: of an engine that only accepts and refuses requests."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def run(self, step: Step) -> StepOutput:
        """Never called: such an engine is not stepped."""
        raise NotImplementedError
