"""The outermost cells on Ascend: the names that operators look inputs up by, masks, and float32 outside."""

from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from mindbatch.kernels.ascend.attention import HIDDEN
from mindbatch.kernels.ascend.step import CHUNKS, PROMPTS

TRIANGLE = 128
"""Side of the causal mask that FlashAttentionScore takes for a sequence of any length in layout TH."""


class StepCell(nn.Cell):
    """Over one that takes (ids, positions, step), and the mask that attention gets."""

    def __init__(self, cell: nn.Cell, graph: str, dtype: Any, block_size: int) -> None:
        super().__init__(auto_prefix=False)
        self.cell = cell
        self.dtype = dtype
        self.block_size = block_size
        self.is_masked_by_row = graph == CHUNKS
        self.mask = Tensor(_fixed_mask(graph, dtype)).astype(dtype)

    def mask_of(self, positions: Tensor, block_tables: Tensor) -> Tensor:
        """Mask that attention adds to scores: a row for each token where a sequence has several."""
        if not self.is_masked_by_row:
            return self.mask
        columns = ops.arange(block_tables.shape[1] * self.block_size).expand_dims(0)
        return ops.cast(columns > positions.expand_dims(1), self.dtype) * HIDDEN


class AscendGraph(StepCell):
    """Takes the fields of `AscendBatch`; attention gets (slots, block_tables, lengths, queries, mask,
    positions).

    The operators find the inputs batch_valid_length and q_seq_lens by these names. They are given to every
    graph, for an input of another graph that ran before would be found otherwise.
    """

    def construct(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        block_tables: Tensor,
        batch_valid_length: Tensor,
        q_seq_lens: Tensor,
    ) -> Any:
        mask = self.mask_of(positions, block_tables)
        step = (slots, block_tables, batch_valid_length, q_seq_lens, mask, positions)
        return _float32(self.cell(ids, positions, step, ()))


class AdaptedAscendGraph(StepCell):
    def construct(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        block_tables: Tensor,
        batch_valid_length: Tensor,
        q_seq_lens: Tensor,
        adapters: Tensor,
    ) -> Any:
        mask = self.mask_of(positions, block_tables)
        step = (slots, block_tables, batch_valid_length, q_seq_lens, mask, positions)
        return _float32(self.cell(ids, positions, step, (adapters,)))


class AscendHead(nn.Cell):
    """float32 hidden states to float32 logits over a head of another type."""

    def __init__(self, head: nn.Cell, dtype: Any) -> None:
        super().__init__(auto_prefix=False)
        self.head = head
        self.dtype = dtype

    def construct(self, hidden: Tensor) -> Tensor:
        return ops.cast(self.head(ops.cast(hidden, self.dtype)), mstype.float32)


class AdaptedAscendHead(nn.Cell):
    """Head with the slots [S] of the hidden states' adapters."""

    def __init__(self, head: nn.Cell, dtype: Any) -> None:
        super().__init__(auto_prefix=False)
        self.head = head
        self.dtype = dtype

    def construct(self, hidden: Tensor, adapters: Tensor) -> Tensor:
        return ops.cast(self.head(ops.cast(hidden, self.dtype), (adapters,)), mstype.float32)


def _float32(output: Any) -> Any:
    if isinstance(output, tuple):
        return ops.cast(output[0], mstype.float32), ops.cast(output[1], mstype.float32)
    return ops.cast(output, mstype.float32)


def _fixed_mask(graph: str, dtype: Any) -> Any:
    """[128, 128] for FlashAttentionScore, which multiplies it by HIDDEN itself in bfloat16; else [1, 1]."""
    if graph != PROMPTS:
        return np.zeros((1, 1), np.float32)
    hidden = 1.0 if dtype == mstype.bfloat16 else HIDDEN
    return np.triu(np.full((TRIANGLE, TRIANGLE), hidden, np.float32), 1)
