"""One step of the engine, the tokens that a request wants of it, and the interface of what runs it."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mindbatch.engine.sequence import Sequence, SequenceGroup
from mindbatch.kernels.step import Logits, StepInputs


@dataclass(slots=True)
class ScheduledTokens:
    """Positions start .. stop - 1 of one sequence; the logits of the last `num_logits` are wanted.

    adapter: the slot of the adapter that they are computed with; 0 is the base.
    """

    group: SequenceGroup
    sequence: Sequence
    start: int
    stop: int
    num_logits: int
    adapter: int = 0

    @property
    def num_encoder_tokens(self) -> int:
        """Number of tokens, the first ones, of an encoder's input, of which nothing is read off."""
        return max(0, min(self.sequence.num_encoder_tokens, self.stop) - self.start)


@dataclass(slots=True)
class Step:
    """One step of the engine: its tokens, and the cache blocks to copy before it runs.

    adapter_loads: slots, and the names of the adapters to load into them before it runs.
    filled: the blocks that are full after the step, by the digest of what they then hold.
    state_copies, states: as copies and filled, of slots of recurrent states.
    """

    scheduled: list[ScheduledTokens] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    adapter_loads: list[tuple[int, str]] = field(default_factory=list)
    filled: dict[bytes, int] = field(default_factory=dict)
    num_tokens: int = 0
    state_copies: list[tuple[int, int]] = field(default_factory=list)
    states: dict[bytes, int] = field(default_factory=dict)


def next_tokens(group: SequenceGroup, budget: int) -> list[ScheduledTokens]:
    """A group's tokens for this step, within a budget; its sequences go on together or not at all.

    A sequence goes on from its last token, and its draft is verified in the same step.
    """
    sequences = group.sequences
    is_alone = len(sequences) == 1
    together = is_alone or group.is_decoding
    if not is_alone and together:
        least = sum(sequence.num_replayed_tokens + 1 + sequence.num_draft_tokens for sequence in sequences)
        if least > budget:
            return []  # one alone is left out below
    wanted = []
    for sequence in sequences:
        earlier = sequence.num_earlier_tokens
        last = 1 + sequence.num_draft_tokens if together else 0
        # The last token and its draft go together, or in a later step.
        if earlier + last > budget:
            last = 0
        count = min(earlier, budget) + last
        start = sequence.num_computed_tokens
        if start < sequence.num_known_tokens < start + count:
            count, last = sequence.num_known_tokens - start, 0
        if count == 0 or count < sequence.num_unsplittable_prefill_tokens:
            continue
        budget -= count
        wanted.append(ScheduledTokens(group, sequence, start, start + count, last, group.adapter_slot))
    return wanted


class StepOutput(Protocol):
    """The model's answer to one step of T tokens."""

    def logits(self, tokens: Items[int]) -> npt.NDArray[np.float32]:
        """Logits [len(tokens), vocabulary] that follow the given tokens, counted from 0 in step order."""

    def logits_and_summary(self, tokens: Items[int]) -> Logits:
        return Logits(self.logits(tokens))

    def hidden(self, tokens: Items[int]) -> npt.NDArray[np.float32]:
        """Hidden states [len(tokens), hidden size] after the last norm, of the same tokens."""


class Runner(Protocol):
    """Runs steps; its cache holds the keys and values of the blocks that the scheduler hands out."""

    vocab_size: int

    def run(self, step: Step) -> StepOutput:
        """Copies the step's blocks, computes its tokens and writes them to the cache."""


class StageRunner(Runner, Protocol):
    """Runs the last of several pipeline stages; the others compute a step as soon as they are told of it.

    Steps are completed in the order in which they were announced.
    """

    def announce(self, step: Step) -> StepInputs:
        """Tells the stages before this one of a step, and returns at once."""

    def complete(self, inputs: StepInputs) -> StepOutput:
        """Computes this stage's part of a step that was announced."""


class DryRunner:
    """Computes nothing: of an engine that only accepts and refuses requests."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def run(self, step: Step) -> StepOutput:
        raise NotImplementedError
