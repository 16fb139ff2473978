"""Limits of Ascend's attention operators, and layout of a step for them: which graph, in which sequences.

The operators read two of a graph's inputs on the host, by name: batch_valid_length, the positions that each
sequence has with this step's, and q_seq_lens, how many tokens of it the step computes. What is left of a
bucket is filled with sequences of their own, each of at least one token, for no operator documents a length
of 0; they write to the cache's padding block and read from it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mindbatch.kernels.memory import FLOAT16, FLOAT32, FloatType
from mindbatch.kernels.shapes import AttentionShape
from mindbatch.kernels.step import Batch, IntArray, Span, StepShape

# Beyond what MindSpore checks when it compiles. Sources: CANN 8.5, Ascend Transformer Boost, PagedAttention,
# constraints (page ascendtb_01_0198 of its API reference); for FlashAttentionScore the docstring of MindSpore
# 2.9's operator.
BLOCK_MULTIPLE = 16  # block_size % 16 == 0
LARGEST_BLOCK = 128  # where a sequence has several queries (parallel decoding, chunks of prompts)
LARGEST_HEAD = 256  # head_size in (0, 256]
LARGEST_BLOCK_OF_HEAD = 128 * 128  # block_size * head_size
FLASH_HEAD_MULTIPLE = 16  # of FlashAttentionScore's D
LARGEST_FLASH_HEADS = 256  # its N1
GATHERED_BYTES = 2 << 30
"""Most memory of keys and values that are gathered for the tokens of a step, in float32."""
ALIBI_NUMBERS = 16
"""Numbers more that a head has with ALiBi: see `mindbatch.kernels.ascend.attention`."""


def is_plain(shape: AttentionShape) -> bool:
    """True if plain operators compute attention, over gathered keys and values: the fused ones do not."""
    is_rounded = shape.alibi is not None and shape.alibi.is_rounded
    return shape.head_dim > LARGEST_HEAD or is_rounded or shape.softcap > 0 or shape.has_sinks


def widened(shape: AttentionShape) -> AttentionShape:
    """The shape as the cache has it: heads with ALiBi are wider."""
    if shape.alibi is None or shape.alibi.is_rounded:
        return shape
    return replace(shape, head_dim=shape.head_dim + ALIBI_NUMBERS)


def max_gathered_tokens(seq_length: int, numbers: int) -> int:
    """Tokens of a step whose keys and values are gathered for each; 0 where they are too many for one.

    seq_length: tokens of the longest sequence. numbers: of a token's keys and values in a layer.
    """
    return GATHERED_BYTES // (seq_length * numbers * FLOAT32.itemsize)


def limit_errors(head_dim: int, block_size: int, *, is_gathered: bool = False) -> Iterator[str]:
    """Yields reasons why the operators do not take these sizes, in the configuration's words.

    head_dim: numbers of a head in the cache. is_gathered: see `is_plain`.
    """
    where = "not with runtime.device_target=Ascend, whose PagedAttention"
    if block_size % BLOCK_MULTIPLE or block_size > LARGEST_BLOCK:
        yield (
            f"runtime.block_size={block_size}: {where} takes multiples of {BLOCK_MULTIPLE} up to "
            f"{LARGEST_BLOCK}"
        )
    if not is_gathered:
        yield from _head_errors(head_dim, block_size, where)


def _head_errors(head_dim: int, block_size: int, where: str) -> Iterator[str]:
    if head_dim > LARGEST_HEAD:
        yield (
            f"heads of {head_dim} numbers: {where} takes at most {LARGEST_HEAD}; allowed: CPU for this model"
        )
    elif block_size * head_dim > LARGEST_BLOCK_OF_HEAD:
        yield (
            f"runtime.block_size={block_size}: {where} takes at most {LARGEST_BLOCK_OF_HEAD} numbers of one "
            f"head in a block; allowed with heads of {head_dim}: at most {LARGEST_BLOCK_OF_HEAD // head_dim}"
        )


def flash_is_legal(heads: int, head_dim: int, float_type: FloatType) -> bool:
    """True if FlashAttentionScore computes whole prompts; elsewhere PagedAttention does, from the cache.

    Not in float16: MindSpore refuses masks of that type when it compiles ("Attn mask don't support float16").
    """
    if float_type == FLOAT16:
        return False
    return head_dim % FLASH_HEAD_MULTIPLE == 0 and head_dim <= LARGEST_HEAD and heads <= LARGEST_FLASH_HEADS


TOKENS = "tokens"
"""Every token is a sequence of its own: PagedAttention, one query each. Steps that only decode."""
PROMPTS = "prompts"
"""Every sequence is computed from its first position on: FlashAttentionScore over the step itself."""
CHUNKS = "chunks"
"""All else: PagedAttention with several queries of a sequence, each with its row of a mask."""


class AscendBatch(NamedTuple):
    """T tokens of B sequences, padding included, in the order that `graphs.step_graph` takes them; all int32.

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
