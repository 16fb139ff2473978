"""Layout of a step for Ascend's operators: which graph computes it, and in which sequences.

The operators read two of a graph's inputs on the host, by name: batch_valid_length, the positions that each
sequence has with this step's, and q_seq_lens, how many tokens of it the step computes. What is left of a
bucket is filled with sequences of their own, each of at least one token, for no operator documents a length
of 0; they write to the cache's padding block and read from it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mindbatch.kernels.step import Batch, IntArray, Span, StepShape

TOKENS = "tokens"
"""Every token is a sequence of its own: PagedAttention, one query each. Steps that only decode."""
PROMPTS = "prompts"
"""Every sequence is computed from its first position on: FlashAttentionScore over the step itself."""
CHUNKS = "chunks"
"""All else: PagedAttention with several queries of a sequence, each with its row of a mask."""


class AscendBatch(NamedTuple):
    """T tokens of B sequences, padding included, in the order that `AscendGraph` takes them; all int32.

    ids, positions, slots: [T]; no slot is negative.
    block_tables: [B, W].
    batch_valid_length: [B], positions of a sequence up to the end of this step.
    q_seq_lens: [B], its tokens in this step; they lie one after another, and their sum is T.
    """

    ids: IntArray
    positions: IntArray
    slots: IntArray
    block_tables: IntArray
    batch_valid_length: IntArray
    q_seq_lens: IntArray


def rounded_sequences(count: int) -> int:
    """One more than a power of two: a few sizes for all numbers of sequences with one of padding."""
    power = 1
    while power + 1 < count:
        power *= 2
    return power + 1


def each_token_alone(spans: Sequence[Span], pad: Callable[[int], int]) -> StepShape:
    """A step of kind TOKENS; a sequence may have several, each of which attends by itself."""
    size = pad(sum(stop - start for start, stop in spans))
    return StepShape(TOKENS, size, size)


def shape_of(
    spans: Sequence[Span], pad: Callable[[int], int], capacity: int, *, flash: bool, is_windowed: bool = False
) -> StepShape:
    """Chooses the kind of a step and pads its tokens and sequences.

    flash: FlashAttentionScore takes the model's heads. is_windowed: tokens do not see all before them, which
    only the masks of kind CHUNKS say. PagedAttention looks at them where a sequence has several queries: one
    of padding has them then.
    """
    tokens, rows = sum(stop - start for start, stop in spans), len(spans)
    if tokens == rows and not is_windowed:
        return each_token_alone(spans, pad)
    is_prompt = flash and not is_windowed and all(start == 0 for start, _ in spans)
    size = pad(tokens + 1 + is_windowed)
    while True:
        sequences = rounded_sequences(rows + -(-(size - tokens) // capacity))
        if sequences - rows + is_windowed <= size - tokens:
            return StepShape(PROMPTS if is_prompt else CHUNKS, size, sequences)
        size = pad(tokens + sequences - rows + is_windowed)


def arrays_of(batch: Batch, shape: StepShape, padding_block: int, block_size: int) -> AscendBatch:
    """The arrays of a step that `flatten` has laid out in shape.tokens tokens."""
    tokens = int(np.count_nonzero(batch.lengths))
    slots = batch.slots.copy()
    slots[tokens:] = padding_block * block_size + np.arange(shape.tokens - tokens) % block_size
    if shape.graph == TOKENS:
        tables, valid = batch.block_tables[batch.rows], np.maximum(batch.lengths, 1)
        tables[tokens:] = padding_block
        return AscendBatch(batch.ids, batch.positions, slots, tables, valid, np.ones(shape.tokens, np.int32))
    queries = np.bincount(batch.rows[:tokens]).astype(np.int32)
    rows, spare = len(queries), shape.sequences - len(queries)
    shares = np.full(spare, (shape.tokens - tokens) // spare, np.int32)
    shares[: (shape.tokens - tokens) % spare] += 1
    tables = np.full((shape.sequences, batch.block_tables.shape[1]), padding_block, np.int32)
    tables[:rows] = batch.block_tables[:rows]
    valid = np.concatenate((batch.lengths[np.cumsum(queries) - 1], shares))
    positions = batch.positions.copy()
    positions[tokens:] = np.concatenate([np.arange(share) for share in shares])
    return AscendBatch(
        batch.ids, positions, slots, tables, valid, np.concatenate((queries, shares)).astype(np.int32)
    )
