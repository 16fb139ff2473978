"""For `transformer.flash_attention`: ReshapeAndCache and PagedAttention, by our kernels."""

from __future__ import annotations

from typing import Any

from mindspore import Parameter, Tensor, nn, ops

from mindbatch.kernels.mindspore_kernels import MindSporeKernels
from mindbatch.kernels.shapes import AttentionShape


class KernelAttention(nn.Cell):
    """Paged attention of one layer over a cache that it holds itself.

    Called as FlashAttention is, by the same names. Two inputs are those of `engine.batch.Batch` in place of
    MindFormers': batch_valid_length is what each token sees, q_seq_lens its row of block_tables.
    """

    def __init__(
        self, shape: AttentionShape, cache: tuple[Parameter, Parameter], kernels: MindSporeKernels
    ) -> None:
        super().__init__(auto_prefix=False)
        self.attend = kernels.cell("attention", shape=shape)
        self.key_cache, self.value_cache = cache

    def construct(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        slot_mapping: Tensor,
        block_tables: Tensor,
        batch_valid_length: Tensor,
        context_lens_tensor: Tensor,
        q_seq_lens: Tensor,
        actual_seq_qlen: Tensor | None = None,
        actual_seq_kvlen: Tensor | None = None,
        attn_mask: Tensor | None = None,
        key_cache: Tensor | None = None,
        value_cache: Tensor | None = None,
    ) -> Tensor:
        return self.attend(
            ops.cat((query, key, value), -1),
            *(self.key_cache, self.value_cache),
            *(slot_mapping, q_seq_lens, block_tables, batch_valid_length),
        )


def put_in(module: Any, attention: nn.Cell) -> None:
    """Replaces the FlashAttention of an Attention."""
    module.core_attention = attention
