"""Attention on Ascend: the step is written to the paged cache, then one operator attends, by kind of step."""

from typing import Any

import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore import dtype as mstype
from mindspore.ops.operations.nn_ops import FlashAttentionScore

from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.ascend.plain_attention import GatheredAttention
from mindbatch.kernels.ascend.step import ALIBI_NUMBERS
from mindbatch.kernels.mindspore_kernels import constant
from mindbatch.kernels.shapes import AttentionShape

Tensors = tuple[Tensor, ...]
HIDDEN = -10000.0
"""Number that MindFormers adds to the score of a position that a query must not see; exp makes it 0."""


class AscendAttention(nn.Cell):
    """Writes keys and values with ReshapeAndCache; a subclass attends.

    qkv: [T, (heads + 2 * kv_heads) * head_dim]; caches: [blocks, block_size, kv_heads, head_dim]; the rest as
    `graphs.step_graph` hands it on. Returns [T, heads * head_dim].
    """

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(auto_prefix=False)
        self.widths = shape.widths
        self.write = ops.auto_generate.ReshapeAndCache()

    def construct(
        self,
        qkv: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slots: Tensor,
        block_tables: Tensor,
        *sequences: Tensor,
    ) -> Tensor:
        """sequences: lengths, queries, mask, positions, and sinks where the shape has some."""
        query, key, value = mint.split(qkv, self.widths, -1)
        query = ops.depend(query, self.write(key, value, key_cache, value_cache, slots))
        return self.attend(query, key, value, (key_cache, value_cache, block_tables), sequences)


class PromptAttention(AscendAttention):
    """FlashAttentionScore over the step's own keys and values, each sequence causal from its first token."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self.operator = FlashAttentionScore(
            head_num=shape.heads, scale_value=shape.scale, next_tokens=0, input_layout="TH"
        )

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, cached: Tensors, sequences: Tensors
    ) -> Tensor:
        """attention_out, the last of the operator's four outputs."""
        lengths, queries, mask, _ = sequences
        return self.operator(query, key, value, None, None, None, mask, None, queries, lengths)[3]


class CachedAttention(AscendAttention):
    """PagedAttention over the cache by block table; where a sequence has several queries, with a mask."""

    def __init__(self, shape: AttentionShape, is_masked: bool) -> None:
        super().__init__(shape)
        self.is_masked, self.window, self.is_chunked = is_masked, shape.window, shape.is_chunked
        self.operator = ops.auto_generate.PagedAttention(shape.heads, shape.scale, shape.kv_heads)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, cached: Tensors, sequences: Tensors
    ) -> Tensor:
        """Scores of query and cached key times the scale, plus the mask; lengths bound each sequence."""
        keys, values, tables = cached
        lengths, queries, mask, positions = sequences
        if not self.is_masked:
            return self.operator(query, keys, values, tables, lengths, None, None, None, queries)
        if 0 < self.window < mask.shape[1]:
            columns = ops.arange(mask.shape[1]).expand_dims(0)
            own = positions.expand_dims(1)
            outside = columns <= own - (own % self.window + 1 if self.is_chunked else self.window)
            mask = mask + ops.cast(outside, mask.dtype) * HIDDEN
        return self.operator(query, keys, values, tables, lengths, None, None, mask, queries)


class PlainAttention(AscendAttention):
    """Attention that no fused operator computes; each token is a sequence, its whole block table gathered."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self.heads, self.head_dim = shape.heads, shape.head_dim
        self.over = GatheredAttention(shape)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, cached: Tensors, sequences: Tensors
    ) -> Tensor:
        keys, values, tables = cached
        heads = query.reshape(-1, self.heads, self.head_dim)
        lengths, _, _, _, *sinks = sequences
        y = self.over(heads, ops.gather(keys, tables, 0), ops.gather(values, tables, 0), lengths, *sinks)
        return ops.cast(y, query.dtype)


_WHOLE = 256
"""bfloat16 has all whole numbers up to it, and so many times it."""
_PARTS = 3
"""Numbers of half precision whose sum is one of float32, nearly."""


class AlibiAttention(nn.Cell):
    """Attention of a shape with ALiBi over a cell for its `widened` shape; see `AscendAttention`.

    The operators add nothing to scores: each head gets numbers whose products are the biases. The bias of a
    key at position p for a query at position q is s (p - q), where s is the head's slope over the scale that
    all products get. p, s and s q are sums of numbers that half precision has exactly, or nearly; the
    operators add their products up in float32, where what is left of them is small.

    dtype: NumPy's form of the type that the operators get.
    """

    def __init__(self, shape: AttentionShape, wide: nn.Cell, dtype: np.dtype[Any]) -> None:
        super().__init__(auto_prefix=False)
        alibi = shape.alibi
        assert alibi is not None
        assert not alibi.is_rounded, "its biases are no products"
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.wide = wide
        slopes = (np.asarray(alibi.slopes) * alibi.factor / shape.scale).reshape(1, -1, 1)
        self.slopes = constant(slopes, np.float32)
        self.slope_parts = constant(_parts(slopes.astype(np.float32), dtype), np.float32)

    def construct(
        self,
        qkv: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slots: Tensor,
        block_tables: Tensor,
        *sequences: Tensor,
    ) -> Tensor:
        tokens = qkv.shape[0]
        positions = ops.cast(sequences[-1], mstype.float32).reshape(tokens, 1, 1)
        more = ops.cast(self._numbers(positions, qkv), qkv.dtype)
        heads = ops.cat((qkv.reshape(tokens, -1, self.head_dim), more), 2).reshape(tokens, -1)
        y = self.wide(heads, key_cache, value_cache, slots, block_tables, *sequences)
        y, _ = mint.split(y.reshape(tokens, self.heads, -1), (self.head_dim, ALIBI_NUMBERS), -1)
        return y.reshape(tokens, -1)

    def _numbers(self, positions: Tensor, like: Tensor) -> Tensor:
        """[T, heads + 2 * kv_heads, ALIBI_NUMBERS].

        Of a query s for both parts of p, and -s q; of a key both parts of p, and 1; each in three parts.
        """
        tokens = positions.shape[0]
        slopes = ops.broadcast_to(self.slope_parts, (tokens, self.heads, _PARTS))
        own = -self._parts_of(positions * self.slopes, like)
        above = ops.floor(positions / _WHOLE) * _WHOLE
        below, one = positions - above, positions * 0.0 + 1.0
        key = ops.cat((below, below, below, above, above, above, one, one, one), 2)
        keys = ops.broadcast_to(key, (tokens, self.kv_heads, 3 * _PARTS))
        heads = ops.cat((ops.cat((slopes, slopes, own), 2), keys, keys * 0.0), 1)
        nothing = ops.zeros((tokens, self.heads + 2 * self.kv_heads, ALIBI_NUMBERS - 3 * _PARTS), heads.dtype)
        return ops.cat((heads, nothing), 2)

    def _parts_of(self, x: Tensor, like: Tensor) -> Tensor:
        """Splits as `_parts` does, in the type of another tensor."""
        first = self._rounded(x, like)
        second = self._rounded(x - first, like)
        return ops.cat((first, second, self._rounded(x - first - second, like)), 2)

    def _rounded(self, x: Tensor, like: Tensor) -> Tensor:
        return ops.cast(ops.cast(x, like.dtype), mstype.float32)


def _parts(x: FloatArray, dtype: np.dtype[Any]) -> FloatArray:
    """Splits x [..., 1] into a type's nearest number, that of the rest and that of what is left: [..., 3]."""
    first = x.astype(dtype).astype(np.float32)
    second = (x - first).astype(dtype).astype(np.float32)
    third = (x - first - second).astype(dtype).astype(np.float32)
    return np.concatenate((first, second, third), -1)
