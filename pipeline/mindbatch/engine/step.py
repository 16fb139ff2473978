"""A step of the engine, a request's tokens in it, and the interface of what runs steps."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mindbatch.engine.sequence import Sequence, SequenceGroup
from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.step import IntArray, Logits, StepInputs, StepValues


@dataclass(slots=True)
class ScheduledTokens:
    """Positions start .. stop - 1 of one sequence; the step needs the logits of the last `num_logits`.

    adapter: the slot of the adapter that computes them; 0 is the base.
    """

    group: SequenceGroup
    sequence: Sequence
    start: int
    stop: int
    num_logits: int
    adapter: int = 0

    @property
    def num_encoder_tokens(self) -> int:
        """Number of leading tokens that are an encoder's input, which have no logits."""
        return max(0, min(self.sequence.num_encoder_tokens, self.stop) - self.start)


@dataclass(slots=True)
class Step:
    """One step of the engine: its tokens, and the cache blocks to copy before it runs.

    adapter_loads: slots, and the names of the adapters to load into them before it runs.
    filled: the blocks that are full after the step, by the digest of their contents.
    state_copies, states: the same as copies and filled, for slots of recurrent states.
    """

    scheduled: list[ScheduledTokens] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    adapter_loads: list[tuple[int, str]] = field(default_factory=list)
    filled: dict[bytes, int] = field(default_factory=dict)
    num_tokens: int = 0
    state_copies: list[tuple[int, int]] = field(default_factory=list)
    states: dict[bytes, int] = field(default_factory=dict)


class StepOutput(Protocol):
    """The model's output of one step of T tokens."""

    def logits(self, tokens: Items[int]) -> npt.NDArray[np.float32]:
        """Returns the logits [len(tokens), vocabulary] after the step's tokens with these indices."""

    def logits_and_summary(self, tokens: Items[int]) -> Logits:
        return Logits(self.logits(tokens))

    def hidden(self, tokens: Items[int]) -> npt.NDArray[np.float32]:
        """Returns the hidden states [len(tokens), hidden size] of such tokens, after the last norm."""


Project = Callable[[FloatArray, IntArray | None], Logits]
"""Hidden states [S, hidden size], and the slots [S] of their adapters if any, to their logits."""


class RunnerOutput:
    """A `StepOutput` that computes logits of the tokens when they are requested, where they did not come
    along."""

    def __init__(self, values: StepValues, project: Project, adapters: IntArray | None = None) -> None:
        """`adapters`: see `StepInputs`."""
        self._hidden, self._logits, self._tokens = values
        self._project = project
        self._adapters = adapters

    def logits(self, tokens: Items[int]) -> FloatArray:
        return self.logits_and_summary(tokens).scores

    def logits_and_summary(self, tokens: Items[int]) -> Logits:
        if self._logits is None:
            chosen = np.asarray(tokens, np.intp)
            adapters = None if self._adapters is None else self._adapters[chosen]
            return self._project(self.hidden(tokens), adapters)
        if list(tokens) == list(range(len(tokens))):
            return self._logits.of(slice(len(tokens)))
        return self._logits.of(np.asarray(tokens, np.int32))

    def hidden(self, tokens: Items[int]) -> FloatArray:
        rows = np.asarray(tokens, np.intp)
        if self._tokens is not None:
            assert np.isin(rows, self._tokens).all(), "only wanted tokens are computed"
            rows = np.searchsorted(self._tokens, rows)
        return self._hidden[rows]


class Runner(Protocol):
    """Runs steps; its cache holds the keys and values of the blocks that the scheduler allocates."""

    vocab_size: int

    def run(self, step: Step) -> StepOutput:
        """Copies the step's blocks, computes its tokens and writes them to the cache."""


class StageRunner(Runner, Protocol):
    """Runs the last of several pipeline stages; the others compute a step as soon as it is announced.

    Steps are completed in the order in which they were announced.
    """

    def announce(self, step: Step) -> StepInputs:
        """Sends a step to the stages before this one, and returns at once."""

    def complete(self, inputs: StepInputs) -> StepOutput:
        """Computes this stage's part of an announced step."""


class DryRunner:
    """Runner without a model, for an engine that only checks requests."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def run(self, step: Step) -> StepOutput:
        raise NotImplementedError
