"""ALiBi by operators that add nothing to scores: each head gets numbers whose products are the biases.

The bias of a key at position p for a query at position q is s (p - q), where s is the head's slope over the
scale that all products get. p, s and s q are sums of numbers that half precision has exactly, or nearly; the
operators add their products up in float32, where what is left of them is small.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore import dtype as mstype

from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.ascend.limits import ALIBI_NUMBERS
from mindbatch.kernels.mindspore_kernels import constant
from mindbatch.kernels.shapes import AttentionShape

_WHOLE = 256
"""bfloat16 has all whole numbers up to it, and so many times it."""
_PARTS = 3
"""Numbers of half precision whose sum is one of float32, nearly."""


def widened(shape: AttentionShape) -> AttentionShape:
    if shape.alibi is None or shape.alibi.is_rounded:
        return shape
    return replace(shape, head_dim=shape.head_dim + ALIBI_NUMBERS)


class AlibiAttention(nn.Cell):
    """Attention of a shape with ALiBi over a cell for its `widened` shape; see `AscendAttention`.

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
