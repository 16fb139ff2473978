"""Attention on Ascend: the step is written to the paged cache, then one operator attends, by kind of step."""

from mindspore import Tensor, mint, nn, ops
from mindspore.ops.operations.nn_ops import FlashAttentionScore

from mindbatch.kernels.ascend.limits import needs_gathering
from mindbatch.kernels.ascend.plain_attention import GatheredAttention
from mindbatch.kernels.shapes import AttentionShape

HIDDEN = -10000.0
"""Number that MindFormers adds to the score of a position that a query must not see; exp makes it 0."""


class AscendAttention(nn.Cell):
    """Writes keys and values with ReshapeAndCache; a subclass attends.

    qkv: [T, (heads + 2 * kv_heads) * head_dim]; caches: [blocks, block_size, kv_heads, head_dim]; the rest as
    `AscendGraph` hands it on. Returns [T, heads * head_dim].
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
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cached: tuple[Tensor, ...],
        sequences: tuple[Tensor, ...],
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
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cached: tuple[Tensor, ...],
        sequences: tuple[Tensor, ...],
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
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cached: tuple[Tensor, ...],
        sequences: tuple[Tensor, ...],
    ) -> Tensor:
        keys, values, tables = cached
        heads = query.reshape(-1, self.heads, self.head_dim)
        lengths, _, _, _, *sinks = sequences
        y = self.over(heads, ops.gather(keys, tables, 0), ops.gather(values, tables, 0), lengths, *sinks)
        return ops.cast(y, query.dtype)


def is_plain(shape: AttentionShape) -> bool:
    is_rounded = shape.alibi is not None and shape.alibi.is_rounded
    has_softcap, has_sinks = shape.softcap > 0, shape.has_sinks
    return needs_gathering(
        shape.head_dim, is_rounded=is_rounded, has_softcap=has_softcap, has_sinks=has_sinks
    )


class AscendCacheWriter(nn.Cell):
    """(x, keys, values [T, heads * head_dim], caches, slots) -> x and the caches, once they are written."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.write = ops.auto_generate.ReshapeAndCache()

    def construct(
        self, x: Tensor, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
    ) -> tuple[Tensor, ...]:
        x = ops.depend(x, self.write(key, value, key_cache, value_cache, slots))
        return x, key_cache, value_cache
