"""For `transformer.multi_latent_attention`: the cache is written and read in one go, by our kernels."""

from __future__ import annotations

from typing import Any

from mindspore import Parameter, Tensor, nn, ops

from mindbatch.backends.mindformers.stand_ins.attention import KernelAttention
from mindbatch.kernels.mindspore_kernels import MindSporeKernels
from mindbatch.kernels.shapes import AttentionShape


class LatentTensors(nn.Cell):
    """MLASelfAttention's queries over the compressed vectors, and what a token caches, as key and as value.

    It stands for get_query_key_value_tensors, which would write the cache itself.
    """

    def __init__(self, module: Any) -> None:
        super().__init__(auto_prefix=False)
        self.compute = module
        self.absorb = ops.BatchMatMul()

    def construct(
        self,
        hidden_states: Tensor,
        batch_valid_length: Tensor,
        rotary_pos_cos: Tensor,
        rotary_pos_sin: Tensor,
        slot_mapping: Tensor,
        key_cache: Tensor | None,
    ) -> Any:
        compressed, rotated_key, query, rotated_query = self.compute.compute_kv(
            hidden_states, batch_valid_length, rotary_pos_cos, rotary_pos_sin
        )
        query = self.absorb(query.swapaxes(0, 1), self.compute.q_absorb).swapaxes(0, 1)
        queries = ops.cat((query, rotated_query), -1).reshape((query.shape[0], -1))
        cached = ops.cat((compressed, rotated_key), -1)
        return queries, None, cached, None, cached, self.compute.out_absorb


class LatentAttention(nn.Cell):
    """Attention whose values are the first `rank` numbers of what is cached."""

    def __init__(
        self,
        shape: AttentionShape,
        rank: int,
        cache: tuple[Parameter, Parameter],
        kernels: MindSporeKernels,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.attention = KernelAttention(shape, cache, kernels)
        self.heads, self.size, self.rank = shape.heads, shape.head_dim, rank

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
        seen = self.attention(
            *(query, key, value, slot_mapping, block_tables, batch_valid_length),
            *(context_lens_tensor, q_seq_lens),
        )
        by_head = seen.reshape((query.shape[0], self.heads, self.size))
        return by_head[:, :, : self.rank].reshape((query.shape[0], -1))


def put_in(module: Any, attention: nn.Cell) -> None:
    """Replaces the FlashAttention of an MLASelfAttention, and its method that writes the cache."""
    module.core_attention = attention
    object.__setattr__(module, "get_query_key_value_tensors", LatentTensors(module))
