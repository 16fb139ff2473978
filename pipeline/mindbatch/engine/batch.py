"""The arrays of one flattened step, padded to a bucket so that few graphs are compiled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Items

import numpy as np

from mindbatch.engine.scheduler import Step
from mindbatch.kernels.step import Batch, IntArray


def buckets_up_to(largest: int, *, few: bool = False) -> list[int]:
    """Sizes that a step is padded to: 1, 2, 4, 8, then steps of a half or a third of a power of two.

    few: 1, 4, 16, 64 ... instead.
    """
    sizes = [1, 4, 16] if few else [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384]
    while sizes[-1] < largest:
        sizes.append(sizes[-1] * 4 if few else sizes[-2] * 2)
    return [size for size in sizes if size < largest] + [largest]


def pad_to_bucket(count: int, buckets: Items[int]) -> int:
    """The smallest bucket that holds `count`."""
    return buckets[bisect_left(buckets, count)]


def flatten(
    step: Step,
    sizes: tuple[int, int],
    block_size: int,
    table_width: int,
    first_block: int = 0,
    *,
    with_adapters: bool = False,
    with_encoder: bool = False,
    num_positions: int = 1,
) -> Batch:
    """Lays a step out as arrays of so many tokens and block tables of so many sequences, padding included.

    sizes: tokens and sequences. table_width: columns of the block tables.
    first_block: of the cache, where the step's blocks are counted from.
    with_adapters: the model has a slot for the adapter of each token. with_encoder: it has an encoder.
    num_positions: of each token.
    """
    size, sequences = sizes
    ids, rows, lengths, adapters, encoded = (np.zeros(size, np.int32) for _ in range(5))
    positions = np.zeros(size if num_positions == 1 else (size, num_positions), np.int32)
    slots = np.full(size, -1, np.int32)
    block_tables = np.zeros((sequences, table_width), np.int32)
    at = 0
    for row, tokens in enumerate(step.scheduled):
        table = tokens.sequence.block_table
        block_tables[row, : len(table)] = np.asarray(table, np.int32) + first_block
        span = slice(at, at + tokens.stop - tokens.start)
        place = np.arange(tokens.start, tokens.stop, dtype=np.int32)
        ids[span] = tokens.sequence.tokens(tokens.start, tokens.stop)
        context = tokens.sequence.context
        positions[span] = place if context is None else context.positions(place)
        slots[span] = block_tables[row, place // block_size] * block_size + place % block_size
        rows[span] = row
        lengths[span] = place + 1 if context is None else context.lengths(place)
        adapters[span] = tokens.adapter
        encoded[span] = tokens.sequence.num_encoder_tokens
        at = span.stop
    of_adapters, of_encoder = adapters if with_adapters else None, encoded if with_encoder else None
    return Batch(ids, positions, slots, rows, block_tables, lengths, of_adapters, of_encoder)


def wanted_tokens(step: Step) -> IntArray:
    """The tokens of a step whose logits or hidden states may be asked for, counted from 0."""
    wanted, end = list[int](), 0
    for tokens in step.scheduled:
        first, end = end, end + tokens.stop - tokens.start
        wanted += range(
            first + tokens.num_encoder_tokens if tokens.group.records_prompt else end - tokens.num_logits, end
        )
    return np.array(wanted, np.int32)
