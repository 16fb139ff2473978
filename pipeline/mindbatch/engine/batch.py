"""The arrays of one flattened step, padded to a bucket so that few graphs are compiled."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Sequence as Items
from itertools import chain, repeat
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mindbatch.engine.step import ScheduledTokens, Step
from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.step import Batch, IntArray, Logits, StepValues

Scalar = TypeVar("Scalar", bound=np.generic)
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


def buckets_up_to(largest: int, *, few: bool = False) -> list[int]:
    """Returns sizes that a step is padded to: 1, 2, 4, 8, then steps of a half or a third of a power of two.

    few: 1, 4, 16, 64 ... instead.
    """
    sizes = [1, 4, 16] if few else [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384]
    while sizes[-1] < largest:
        sizes.append(sizes[-1] * 4 if few else sizes[-2] * 2)
    return [size for size in sizes if size < largest] + [largest]


def pad_to_bucket(count: int, buckets: Items[int]) -> int:
    """Returns the smallest bucket that holds `count`."""
    return buckets[bisect_left(buckets, count)]


def flatten(
    step: Step, sizes: tuple[int, int], block_size: int, table_width: int, *, with_adapters: bool = False
) -> Batch:
    """Lays a step out as arrays of so many tokens and block tables of so many sequences, padding included.

    sizes: tokens and sequences. table_width: columns of the block tables.
    with_adapters: the model has a slot for the adapter of each token. What else tokens of its type have shows
    in their sequences: an encoder's input, a second position, a state.
    """
    size, scheduled = sizes[0], step.scheduled
    spans, first = [range(tokens.start, tokens.stop) for tokens in scheduled], scheduled[0].sequence

    def by_token(numbers: Iterable[int]) -> IntArray:
        """Returns the number of each sequence, once for each of its tokens."""
        return _integers(map(repeat, numbers, map(len, spans)))

    indices, rows = _integers(spans), by_token(range(len(spans)))
    ids = _integers(tokens.sequence.tokens(tokens.start, tokens.stop) for tokens in scheduled)
    tables = [tokens.sequence.block_table for tokens in scheduled]
    block_tables = _block_tables(tables, (sizes[1], table_width))
    blocks, offsets = np.divmod(indices, block_size)
    slots = block_tables[rows, blocks] * block_size + offsets
    positions, lengths = (indices, indices + 1) if first.context is None else _within_contexts(scheduled)
    others: dict[str, IntArray] = {}
    if with_adapters:
        others["adapters"] = padded(by_token(tokens.adapter for tokens in scheduled), size)
    if first.num_encoder_tokens:
        inputs = by_token(tokens.sequence.num_encoder_tokens for tokens in scheduled)
        others["encoder_lengths"] = padded(inputs, size)
    if first.state_table:
        others["states"] = padded(_integers(map(_state_slots, scheduled)), size, -1)
    return Batch(
        padded(ids, size),
        padded(positions, size),
        padded(slots, size, -1),
        padded(rows, size),
        block_tables,
        padded(lengths, size),
        **others,
    )


def _state_slots(tokens: ScheduledTokens) -> Iterable[int]:
    """Returns the slot of each token; -1 for drafted ones, which may be rejected."""
    verified = min(tokens.stop, len(tokens.sequence)) - tokens.start
    return chain(
        repeat(tokens.sequence.state_table[0], verified), repeat(-1, tokens.stop - tokens.start - verified)
    )


def _integers(parts: Iterable[Iterable[int]]) -> IntArray:
    """Concatenates integers to one array, which takes less time than operations on small arrays."""
    return np.fromiter(chain.from_iterable(parts), np.int32)


def _block_tables(tables: Items[list[int]], shape: tuple[int, int]) -> IntArray:
    """Stacks block tables to an array of this shape, padded with zeros."""
    rows, width = shape
    fillings = [repeat(0, width - len(table)) for table in tables]
    empty = repeat(0, width * (rows - len(tables)))
    return _integers([*chain.from_iterable(zip(tables, fillings, strict=True)), empty]).reshape(shape)


def _within_contexts(scheduled: Items[ScheduledTokens]) -> tuple[IntArray, IntArray]:
    """Returns the positions [T, 2] and lengths [T] of a model whose prompts have contexts."""
    pairs = []
    for tokens in scheduled:
        context, indices = tokens.sequence.context, np.arange(tokens.start, tokens.stop, dtype=np.int32)
        assert context is not None, "Engine.add finds the context of every prompt"
        pairs.append((context.positions(indices), context.lengths(indices)))
    positions, lengths = zip(*pairs, strict=True)
    return np.concatenate(positions), np.concatenate(lengths)


def padded(values: npt.NDArray[Scalar], size: int, padding: int = 0) -> npt.NDArray[Scalar]:
    """Pads an array to `size` rows."""
    if len(values) == size:
        return values
    rows = np.full((size, *values.shape[1:]), padding, values.dtype)
    rows[: len(values)] = values
    return rows


def wanted_tokens(step: Step) -> IntArray:
    """Returns the indices of the step's tokens whose logits or hidden states may be needed."""
    wanted, end = list[int](), 0
    for tokens in step.scheduled:
        first, end = end, end + tokens.stop - tokens.start
        wanted += range(
            first + tokens.num_encoder_tokens if tokens.group.records_prompt else end - tokens.num_logits, end
        )
    return np.array(wanted, np.int32)
