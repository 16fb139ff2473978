"""Attention by plain operators: over gathered keys and values, and what encoder-decoders have beside."""

import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore import dtype as mstype

from mindbatch.kernels.ascend.plain_cells import capped
from mindbatch.kernels.mindspore_kernels import constant
from mindbatch.kernels.shapes import Alibi, AttentionShape


class StepAttention(nn.Cell):
    """Cell of `operations.attention.distance_attention` within a step: nothing is cached.

    It computes in float32; scores are [heads, T, T].
    """

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(auto_prefix=False)
        self.heads, self.head_dim, self.scale = shape.heads, shape.head_dim, shape.scale
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.weigh = ops.BatchMatMul()

    def construct(self, qkv: Tensor, key_cache: Tensor, value_cache: Tensor, *step: Tensor) -> Tensor:
        _, rows, _, _, _, positions, bias = step
        tokens = qkv.shape[0]
        queries, keys, values = (self._by_head(part) for part in mint.chunk(qkv, 3, -1))
        distances = positions.expand_dims(0) - positions.expand_dims(1)
        scores = self.scores(queries, keys) * self.scale + biases(bias, distances)
        is_same = rows.expand_dims(0) == rows.expand_dims(1)
        weights = ops.softmax(ops.where(is_same.expand_dims(0), scores, NEVER), -1)
        y = self.weigh(weights, values).swapaxes(0, 1).reshape(tokens, -1)
        return ops.cast(y, qkv.dtype)

    def _by_head(self, x: Tensor) -> Tensor:
        heads = x.reshape(x.shape[0], self.heads, self.head_dim).swapaxes(0, 1)
        return ops.cast(heads, mstype.float32)


def biases(table: Tensor, distances: Tensor) -> Tensor:
    """[heads, 2 * max_distance + 1] by distances [a, b] of key and query: [heads, a, b]."""
    max_distance = table.shape[1] // 2
    columns = ops.clamp(distances, -max_distance, max_distance) + max_distance
    return ops.gather(table, columns.reshape(-1), 1).reshape(table.shape[0], *distances.shape)


NEVER = -3.0e38  # a score that exp turns into 0


class GatheredAttention(nn.Cell):
    """Queries [T, heads, head_dim], keys and values [T, W, block_size, kv_heads, head_dim], lengths [T].

    sinks: [heads], where the shape has some.

    Returns [T, heads * head_dim] in float32, in which all of it is computed.
    """

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(auto_prefix=False)
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.scale, self.window, self.softcap = shape.scale, shape.window, shape.softcap
        self.is_chunked = shape.is_chunked
        self.has_alibi = shape.alibi is not None
        alibi = shape.alibi or Alibi(())
        self.slopes = constant(alibi.slopes or [0.0], np.float32)
        self.factor, self.is_rounded = alibi.factor, alibi.is_rounded
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.weigh = ops.BatchMatMul()

    def construct(
        self, queries: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, *sinks: Tensor
    ) -> Tensor:
        scores = self.products(queries, keys)
        if self.softcap > 0:
            scores = capped(scores, self.softcap)
        positions = ops.arange(scores.shape[2]).expand_dims(0)
        limits = lengths.expand_dims(1)
        if self.has_alibi:
            scores = scores + self._biases(positions, limits)
        visible = positions < limits
        if self.window > 0:
            first = limits - ((limits - 1) % self.window + 1 if self.is_chunked else self.window)
            visible = ops.logical_and(visible, positions >= first)
        return self.weighed(scores, visible, values, *sinks)

    def products(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Scores [T, heads, context], times the scale."""
        tokens, group = queries.shape[0], self.heads // self.kv_heads
        grouped = ops.cast(queries, mstype.float32).reshape(-1, group, self.head_dim)
        return self.scores(grouped, by_head(keys)).reshape(tokens, self.heads, -1) * self.scale

    def weighed(self, scores: Tensor, visible: Tensor, values: Tensor, *sinks: Tensor) -> Tensor:
        """Softmax of the scores where visible [T or 1, context], times values: [T, heads * head_dim]."""
        tokens, heads, context = scores.shape
        scores = ops.where(visible.expand_dims(1), scores, NEVER)
        if len(sinks) > 0:
            apart = ops.broadcast_to(sinks[0].reshape(1, heads, 1), (tokens, heads, 1))
            scores = ops.cat((scores, apart), -1)
        weights = ops.softmax(scores, -1)
        if len(sinks) > 0:
            weights = mint.narrow(weights, -1, 0, context)
        weights = weights.reshape(-1, heads // self.kv_heads, context)
        return self.weigh(weights, by_head(values)).reshape(tokens, -1)

    def _biases(self, positions: Tensor, limits: Tensor) -> Tensor:
        """[T or 1, heads, context] of ALiBi, relative to a token's own position unless they are rounded."""
        slopes = self.slopes.expand_dims(0).expand_dims(2)
        if self.is_rounded:
            distances = ops.cast(positions, mstype.float32).expand_dims(1)
            return _nearest_bfloat16(_nearest_bfloat16(slopes) * _nearest_bfloat16(distances)) * self.factor
        distances = ops.cast(positions - limits + 1, mstype.float32).expand_dims(1)
        return slopes * distances * self.factor


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


class DistanceAttentionCell(GatheredAttention):
    """Cell of `operations.attention.distance_attention`: gathers each token's blocks of the cache."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self.write = AscendCacheWriter()

    def construct(self, qkv: Tensor, key_cache: Tensor, value_cache: Tensor, *step: Tensor) -> Tensor:
        slots, rows, block_tables, lengths, first_positions, positions, bias = step
        query, key, value = mint.chunk(qkv, 3, -1)
        query, keys, values = self.write(query, key, value, key_cache, value_cache, slots)
        tables = ops.gather(block_tables, rows, 0)
        scores = self.products(query, ops.gather(keys, tables, 0))
        keys_at = ops.arange(scores.shape[2]).expand_dims(0)
        scores = scores + biases(bias, keys_at - positions.expand_dims(1)).swapaxes(0, 1)
        is_seen = ops.logical_and(keys_at < lengths.expand_dims(1), keys_at >= first_positions.expand_dims(1))
        return ops.cast(self.weighed(scores, is_seen, ops.gather(values, tables, 0)), qkv.dtype)


class CrossAttentionCell(nn.Cell):
    """Cell of `operations.attention.cross_attention`."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(auto_prefix=False)
        self.heads, self.head_dim = shape.heads, shape.head_dim
        self.over = GatheredAttention(shape)

    def construct(
        self,
        queries: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        rows: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        tables = ops.gather(block_tables, rows, 0)
        heads = queries.reshape(-1, self.heads, self.head_dim)
        keys, values = ops.gather(key_cache, tables, 0), ops.gather(value_cache, tables, 0)
        return ops.cast(self.over(heads, keys, values, lengths), queries.dtype)


class CacheWrite(nn.Cell):
    """Cell of `operations.attention.write_cache`."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.write = AscendCacheWriter()

    def construct(
        self, x: Tensor, keys_values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
    ) -> Tensor:
        key, value = mint.chunk(keys_values, 2, -1)
        return self.write(x, key, value, key_cache, value_cache, slots)[0]


def by_head(cached: Tensor) -> Tensor:
    """Arranges [T, W, block_size, heads, head_dim] as [T * heads, W * block_size, head_dim] in float32."""
    tokens, table_width, block_size, heads, head_dim = cached.shape
    context = table_width * block_size
    heads_first = cached.reshape(tokens, context, heads, head_dim).swapaxes(1, 2)
    return ops.cast(heads_first.reshape(tokens * heads, context, head_dim), mstype.float32)


def _nearest_bfloat16(x: Tensor) -> Tensor:
    return ops.cast(ops.cast(x, mstype.bfloat16), mstype.float32)
