"""Attention from MindSpore's operators over keys and values that were gathered for each token."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from mindbatch.kernels.alibi import Alibi
from mindbatch.kernels.ascend.plain_cells import capped
from mindbatch.kernels.shapes import AttentionShape
from mindbatch.kernels.tensors import constant

NEVER = -3.0e38  # a score that exp turns into 0


class GatheredAttention(nn.Cell):
    """Queries [T, heads, head_dim], keys and values [T, W, block_size, kv_heads, head_dim], lengths [T].

    Returns [T, heads * head_dim] in float32, in which all of it is computed.
    """

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(auto_prefix=False)
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.scale, self.window, self.softcap = shape.scale, shape.window, shape.softcap
        self.has_alibi = shape.alibi is not None
        alibi = shape.alibi or Alibi(())
        self.slopes = constant(alibi.slopes or [0.0], np.float32)
        self.factor, self.is_rounded = alibi.factor, alibi.is_rounded
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.weigh = ops.BatchMatMul()

    def construct(self, queries: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        tokens, context = queries.shape[0], keys.shape[1] * keys.shape[2]
        batch, group = tokens * self.kv_heads, self.heads // self.kv_heads
        grouped = ops.cast(queries, mstype.float32).reshape(batch, group, self.head_dim)
        keys, values = by_head(keys, tokens), by_head(values, tokens)
        scores = self.scores(grouped, keys).reshape(tokens, self.heads, context) * self.scale
        if self.softcap > 0:
            scores = capped(scores, self.softcap)
        positions = ops.arange(context).expand_dims(0)
        limits = lengths.expand_dims(1)
        if self.has_alibi:
            scores = scores + self._biases(positions, limits)
        visible = positions < limits
        if self.window > 0:
            visible = ops.logical_and(visible, positions >= limits - self.window)
        scores = ops.where(visible.expand_dims(1), scores, NEVER)
        weights = ops.softmax(scores, -1).reshape(batch, group, context)
        return self.weigh(weights, values).reshape(tokens, self.heads * self.head_dim)

    def _biases(self, positions: Tensor, limits: Tensor) -> Tensor:
        """[T or 1, heads, context] of ALiBi, relative to a token's own position unless they are rounded."""
        slopes = self.slopes.expand_dims(0).expand_dims(2)
        if self.is_rounded:
            distances = ops.cast(positions, mstype.float32).expand_dims(1)
            return _nearest_bfloat16(_nearest_bfloat16(slopes) * _nearest_bfloat16(distances)) * self.factor
        distances = ops.cast(positions - limits + 1, mstype.float32).expand_dims(1)
        return slopes * distances * self.factor


def by_head(cached: Tensor, tokens: int) -> Tensor:
    """Of gathered [T, W, block_size, heads, head_dim]: [T * heads, W * block_size, head_dim] in float32."""
    heads, head_dim = cached.shape[3:]
    context = cached.shape[1] * cached.shape[2]
    heads_first = cached.reshape(tokens, context, heads, head_dim).swapaxes(1, 2)
    return ops.cast(heads_first.reshape(tokens * heads, context, head_dim), mstype.float32)


def _nearest_bfloat16(x: Tensor) -> Tensor:
    return ops.cast(ops.cast(x, mstype.bfloat16), mstype.float32)
