"""Cells of plain operators of MindSpore."""

from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore import dtype as mstype

from mindbatch.kernels.arrays import CopyRows
from mindbatch.kernels.mindspore_kernels import constant
from mindbatch.kernels.shapes import AttentionShape, HeadProductsShape


class RotaryAngles(nn.Cell):
    """Cell of `operations.rotation.rotary_angles`."""

    def __init__(self, inverse_frequencies: Sequence[float], scale: float) -> None:
        super().__init__(auto_prefix=False)
        self.frequencies = constant(inverse_frequencies, np.float32)
        self.scale = scale

    def construct(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = ops.cast(positions, mstype.float32).expand_dims(-1) * self.frequencies
        angles = angles.reshape(positions.shape[0], -1)
        if self.scale != 1.0:
            return ops.cos(angles) * self.scale, ops.sin(angles) * self.scale
        return ops.cos(angles), ops.sin(angles)


class EmbeddingCell(nn.Cell):
    """Rows of the matrix; ids outside it give zeros (another rank has them)."""

    def construct(self, ids: Tensor, weight: Tensor) -> Tensor:
        inside = ops.logical_and(ids >= 0, ids < weight.shape[0])
        rows = ops.gather(weight, ops.clamp(ids, 0, weight.shape[0] - 1), 0)
        return rows * ops.cast(inside, rows.dtype).expand_dims(1)


def capped(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap) of float32. tanh(y) is 2 sigmoid(2 y) - 1; MindSpore's CPU tanh is inexact."""
    return (ops.sigmoid(x * (2.0 / cap)) * 2.0 - 1.0) * cap


class Capped(nn.Cell):
    """`capped` of x, computed in float32."""

    def __init__(self, cap: float) -> None:
        super().__init__(auto_prefix=False)
        self.cap = cap

    def construct(self, x: Tensor) -> Tensor:
        return ops.cast(capped(ops.cast(x, mstype.float32), self.cap), x.dtype)


class Xielu(nn.Cell):
    """Cell of `operations.dense.xielu`, computed in float32."""

    def __init__(self, beta: float, epsilon: float) -> None:
        super().__init__(auto_prefix=False)
        self.beta, self.epsilon = beta, epsilon

    def construct(self, x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        wide = ops.cast(x, mstype.float32)
        above, below = ops.log(ops.exp(positive) + 1.0), ops.log(ops.exp(negative) + 1.0) + self.beta
        curve = below * (ops.exp(ops.clamp(wide, max=self.epsilon)) - 1.0 - wide)
        return ops.cast(ops.where(wide > 0, above * wide * wide, curve) + self.beta * wide, x.dtype)


class Tempered(nn.Cell):
    """Cell of `operations.rotation.tempered`."""

    def __init__(self, shape: AttentionShape, floor: float, factor: float) -> None:
        super().__init__(auto_prefix=False)
        query, *others = shape.widths
        self.widths = (query, sum(others))
        self.floor, self.factor = floor, factor

    def construct(self, qkv: Tensor, positions: Tensor) -> Tensor:
        query, rest = mint.split(qkv, self.widths, -1)
        steps = ops.floor((ops.cast(positions, mstype.float32) + 1.0) / self.floor)
        scale = (ops.log(steps + 1.0) * self.factor + 1.0).expand_dims(1)
        return ops.cat((ops.cast(ops.cast(query, mstype.float32) * scale, qkv.dtype), rest), 1)


class SquareSums(nn.Cell):
    """Cell of `operations.rotation.square_sums`."""

    def __init__(self, shape: AttentionShape, segments: tuple[int, int]) -> None:
        super().__init__(auto_prefix=False)
        self.widths = shape.widths

    def construct(self, qkv: Tensor) -> Tensor:
        query, key, _ = mint.split(qkv, self.widths, -1)
        query, key = ops.cast(query, mstype.float32), ops.cast(key, mstype.float32)
        return ops.cat(((query * query).sum(-1, keepdims=True), (key * key).sum(-1, keepdims=True)), 1)


class NormBySums(nn.Cell):
    """Cell of `operations.rotation.norm_by_sums`."""

    def __init__(self, shape: AttentionShape, epsilon: float, totals: tuple[int, int]) -> None:
        super().__init__(auto_prefix=False)
        self.widths, self.epsilon = shape.widths, epsilon
        self.totals = totals

    def construct(self, qkv: Tensor, sums: Tensor, query_norm: Tensor, key_norm: Tensor) -> Tensor:
        query, key, value = mint.split(qkv, self.widths, -1)
        of_query, of_key = mint.split(sums, (1, 1), -1)
        query = self._normed(query, of_query / self.totals[0], query_norm)
        return ops.cat((query, self._normed(key, of_key / self.totals[1], key_norm), value), 1)

    def _normed(self, x: Tensor, squares: Tensor, weight: Tensor) -> Tensor:
        normed = ops.cast(x, mstype.float32) * ops.rsqrt(squares + self.epsilon)
        return ops.cast(normed * ops.cast(weight, mstype.float32), x.dtype)


class HeadProducts(nn.Cell):
    """Cell of `operations.attention.head_products`; matrices are [heads, inputs, outputs]."""

    def __init__(self, shape: HeadProductsShape) -> None:
        super().__init__(auto_prefix=False)
        self.heads, self.stride, self.first = shape.heads, shape.stride, shape.first
        self.inputs = shape.inputs
        self.product = ops.BatchMatMul()

    def construct(self, x: Tensor, matrices: Tensor) -> Tensor:
        tokens = x.shape[0]
        x = _part(x, 0, self.heads * self.stride).reshape(tokens, self.heads, self.stride)
        x = _part(x, self.first, self.inputs)
        return mint.transpose(self.product(mint.transpose(x, 0, 1), matrices), 0, 1).reshape(tokens, -1)


class LatentHeads(nn.Cell):
    """Cell of `operations.attention.latent_heads`."""

    def __init__(self, heads: int, rope: int) -> None:
        super().__init__(auto_prefix=False)
        self.heads, self.rope = heads, rope

    def construct(self, queries: Tensor, absorbed: Tensor, keys: Tensor, latents: Tensor) -> Tensor:
        tokens, rotated = queries.shape[0], self.heads * self.rope
        queries = _part(queries, queries.shape[1] - rotated, rotated).reshape(tokens, self.heads, self.rope)
        queries = ops.cat((queries, absorbed.reshape(tokens, self.heads, -1)), 2).reshape(tokens, -1)
        key = ops.cat((_part(keys, keys.shape[1] - self.rope, self.rope), latents), 1)
        return ops.cat((queries, key, key), 1)


def _part(x: Tensor, first: int, count: int) -> Tensor:
    """Slice of the last dimension."""
    return mint.narrow(x, -1, first, count)


class GatheredProducts(nn.Cell):
    """Cell of `operations.dense.adapted_products`."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.product = ops.BatchMatMul()
        self.whole = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor, weight: Tensor, slots: Tensor, *stored: Tensor) -> tuple[Tensor, Tensor]:
        y = self.whole(x, weight)
        if len(stored) > 4:
            for slot in range(1, stored[4].shape[0]):
                chosen = ops.logical_and((slots == slot).expand_dims(1), stored[5][slot] > 0)
                y = ops.where(chosen, self.whole(x, stored[4][slot]), y)
        inner = self.product(ops.gather(stored[0], slots, 0), x.expand_dims(2))
        return y, inner.reshape(x.shape[0], -1)


class GatheredSum(nn.Cell):
    """Cell of `operations.dense.adapted_sum`."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.product = ops.BatchMatMul()

    def construct(self, y: Tensor, inner: Tensor, bias: Tensor, slots: Tensor, *stored: Tensor) -> Tensor:
        if bias.shape[0] > 1:
            biased = y + bias
            y = biased if len(stored) == 4 else ops.where(ops.gather(stored[5], slots, 0) > 0, y, biased)
        y = y * ops.gather(stored[2], slots, 0) + ops.gather(stored[3], slots, 0)
        return y + self.product(ops.gather(stored[1], slots, 0), inner.expand_dims(2)).reshape(y.shape)


class GatheredEmbedding(nn.Cell):
    """Cell (ids [T], weight, slots [T], *stored) -> [T, width]; nothing for ids that are not held."""

    def __init__(self, lookup: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.lookup = lookup
        self.product = ops.BatchMatMul()

    def construct(self, ids: Tensor, weight: Tensor, slots: Tensor, *stored: Tensor) -> Tensor:
        a, b, scale, offset = stored[:4]
        tokens = a.shape[1]
        inside = ops.logical_and(ids >= 0, ids < tokens).expand_dims(1)
        where = slots * tokens + ops.clamp(ids, 0, tokens - 1)
        y = self.lookup(ids, weight)
        if len(stored) > 4:
            rows = ops.gather(stored[4].reshape(-1, y.shape[1]), where, 0)
            chosen = ops.logical_and(inside, ops.gather(stored[5], slots, 0) > 0)
            y = ops.where(chosen, rows, y)
        y = y * ops.gather(scale, slots, 0) + ops.gather(offset, slots, 0)
        inner = ops.gather(a.reshape(-1, a.shape[2]), where, 0) * ops.cast(inside, y.dtype)
        return y + self.product(ops.gather(b, slots, 0), inner.expand_dims(2)).reshape(y.shape)


class CopyBlocks(nn.Cell):
    """tensor[destinations] = tensor[sources] for every cache tensor; sources, destinations: [n] int32."""

    def __init__(self, tensors: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.tensors = list(tensors)
        self.update = ops.ScatterUpdate()

    def construct(self, sources: Tensor, destinations: Tensor) -> Tensor:
        for tensor in self.tensors:
            self.update(tensor, destinations, ops.gather(tensor, sources, 0))
        return sources


COPIES_PER_CALL = 16


def block_copies(parameters: Sequence[Parameter], padding: int) -> CopyRows:
    """Copies a few blocks of all caches at a time, always as many, so that a single graph is compiled."""
    cell = CopyBlocks(parameters)

    def copy(pairs: Sequence[tuple[int, int]]) -> None:
        for first in range(0, len(pairs), COPIES_PER_CALL):
            some = list(pairs[first : first + COPIES_PER_CALL])
            some += [(padding, padding)] * (COPIES_PER_CALL - len(some))
            table = np.asarray(some, np.int32)
            cell(Tensor(table[:, 0].copy()), Tensor(table[:, 1].copy()))

    return copy
