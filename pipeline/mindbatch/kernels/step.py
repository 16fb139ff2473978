"""Inputs and values of a model's step: the arrays of its tokens, and which graph computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mindbatch.kernels.arrays import FloatArray

IntArray = npt.NDArray[np.int32]
Span = tuple[int, int]

ANY_STEP = "any"
"""The graph of kernels that compute every step in the same way."""


class Batch(NamedTuple):
    """T tokens, padding included, in the order that the network takes them; all int32.

    ids: [T]. positions: [T], or [T, P] of models whose tokens have several.
    slots: [T], block * block_size + offset of each token in the cache; -1 for padding.
    rows: [T], the row of block_tables that belongs to the token's sequence.
    block_tables: [S, W], row r for the r-th scheduled sequence.
    lengths: [T], tokens of the sequence that the token may see, itself included; 0 for padding.
    first_positions: [T], the first position that the token sees, in a step of an encoder or its decoder; None
        in other steps, where that is 0.
    adapters: [T], the slot of the token's adapter, 0 for the base and for padding; None without adapters.
    encoder_lengths: [T], tokens of the encoder's input with which the token's sequence begins; None of
        models without an encoder.
    states: [T], the slot of the state of the token's sequence; -1 for drafted tokens, after which it is not
        kept, and for padding. None of models without recurrent layers.
    """

    ids: IntArray
    positions: IntArray
    slots: IntArray
    rows: IntArray
    block_tables: IntArray
    lengths: IntArray
    first_positions: IntArray | None = None
    adapters: IntArray | None = None
    encoder_lengths: IntArray | None = None
    states: IntArray | None = None

    def arrays(self) -> list[IntArray]:
        return [array for array in self if array is not None]


class StepShape(NamedTuple):
    """The graph that computes a step, and how many tokens and sequences it has, padding included."""

    graph: str
    tokens: int
    sequences: int


class Logits(NamedTuple):
    """Output of a model's head for S hidden states.

    scores: [S, vocabulary].
    summary: [S, 2, panels], what else is known of the scores (csrc/summary.h); None where nothing is.
    """

    scores: FloatArray
    summary: FloatArray | None = None

    def of(self, rows: IntArray | slice) -> Logits:
        return Logits(self.scores[rows], None if self.summary is None else self.summary[rows])


@dataclass(frozen=True)
class StepInputs:
    """One step as every rank of a model computes it.

    graph: the kind of step, as in `StepShape`.
    arrays: what the graph takes.
    copies, state_copies: (source, destination) of the cache blocks, and slots of states, copied before.
    num_tokens: without padding.
    with_logits: whether the head is in the graph, because the logits of all tokens are wanted.
    adapter_loads: slots, and the names of the adapters that are loaded into them before.
    adapters: the slots of the tokens' adapters, for logits that are computed later; None without adapters.
    wanted: the tokens whose hidden states or logits may be requested, in rising order; None for all.
    """

    graph: str
    arrays: tuple[IntArray, ...]
    copies: tuple[tuple[int, int], ...]
    num_tokens: int
    with_logits: bool
    adapters: IntArray | None = None
    adapter_loads: tuple[tuple[int, str], ...] = ()
    wanted: IntArray | None = None
    state_copies: tuple[tuple[int, int], ...] = ()


class StepValues(NamedTuple):
    """Hidden states [T, hidden size] of a step with its padding, and their logits or none.

    tokens: those that the rows of `hidden` belong to, in rising order; None for all.
    """

    hidden: FloatArray
    logits: Logits | None = None
    tokens: IntArray | None = None


def encoder_and_decoder(step: Sequence[IntArray]) -> tuple[Batch, Batch, IntArray]:
    """The parts of an encoder-decoder's batch, and which of its tokens are the decoder's, in rising order."""
    ids, positions, slots, rows, tables, lengths, *adapters, inputs = step
    encoded, decoded = np.flatnonzero(positions < inputs), np.flatnonzero(positions >= inputs)

    def part(tokens: IntArray, lengths: IntArray, first_positions: IntArray) -> Batch:
        own, cached = (ids[tokens], positions[tokens]), (slots[tokens], rows[tokens])
        return Batch(
            *own, *cached, tables, lengths, first_positions, adapters[0][tokens] if adapters else None
        )

    seen = inputs[encoded]
    return (
        part(encoded, seen, np.zeros_like(seen)),
        part(decoded, lengths[decoded], inputs[decoded]),
        decoded.astype(np.int32),
    )
