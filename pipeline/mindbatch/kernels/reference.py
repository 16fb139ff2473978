"""The same kernels from MindSpore's own operators: slow, plain, and what the fast ones are tested against."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops

from mindbatch.kernels.arrays import Array, aligned_zeros
from mindbatch.kernels.encoder_cells import (
    CacheWrite,
    CacheWriter,
    CrossAttention,
    DistanceAttention,
    StepAttention,
)
from mindbatch.kernels.gathered_attention import GatheredAttention
from mindbatch.kernels.mindspore_kernels import MindSporeKernels
from mindbatch.kernels.reference_experts import Experts
from mindbatch.kernels.reference_latent import Columns, HeadProducts, LatentHeads
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry, ExpertsShape, HeadProductsShape
from mindbatch.kernels.tensors import constant


class Linear(nn.Cell):
    """x W^T + b."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self.matmul(x, weight) + bias


class Embedding(nn.Cell):
    """Rows of the table; ids outside it give zeros (with mp > 1 another rank holds them)."""

    def construct(self, ids: Tensor, weight: Tensor) -> Tensor:
        inside = ops.logical_and(ids >= 0, ids < weight.shape[0])
        rows = ops.gather(weight, ops.clamp(ids, 0, weight.shape[0] - 1), 0)
        return rows * ops.cast(inside, rows.dtype).expand_dims(1)


class Norm(nn.Cell):
    """Layer norm when centred, else RMS norm, over the last dimension."""

    def __init__(self, epsilon: float, centred: bool) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.centred = centred

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.centred:
            x = x - ops.mean(x, -1, True)
        y = x * ops.rsqrt(ops.mean(x * x, -1, True) + self.epsilon) * weight
        return y + bias if self.centred else y


class AddNorm(nn.Cell):
    """norm(x + residual) and the sum itself."""

    def __init__(self, epsilon: float, centred: bool) -> None:
        super().__init__()
        self.norm = Norm(epsilon, centred)

    def construct(self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        total = x if len(residual.shape) == 1 else x + residual
        return self.norm(total, weight, bias), total


def rotated(x: Tensor, cos: Tensor, sin: Tensor, is_interleaved: bool) -> Tensor:
    """Heads [T, heads, head_dim] with the first 2 * cos.shape[1] numbers of each rotated (Su et al., 2021).

    Computed in the type of the angles. is_interleaved: see `Rotary` of an architecture.
    """
    half = cos.shape[1]
    turned, rest = x[:, :, : 2 * half], x[:, :, 2 * half :]
    cos, sin = cos.expand_dims(1), sin.expand_dims(1)
    if is_interleaved:
        pairs = turned.reshape(*turned.shape[:2], half, 2)
        first, second = pairs[:, :, :, 0], pairs[:, :, :, 1]
    else:
        first, second = turned[:, :, :half], turned[:, :, half:]
    ends = (first * cos - second * sin, second * cos + first * sin)
    turned = ops.stack(ends, -1).reshape(turned.shape) if is_interleaved else ops.cat(ends, -1)
    turned = ops.cast(turned, x.dtype)
    return ops.cat((turned, rest), -1) if 2 * half < x.shape[2] else turned


class Rotary(nn.Cell):
    """Norms of query and key heads where the model has them, then their rotation."""

    def __init__(self, shape: AttentionShape, epsilon: float, is_interleaved: bool, in_halves: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.is_interleaved, self.in_halves = is_interleaved, in_halves
        self.norm = Norm(epsilon, centred=False)
        self.no_bias = constant([0.0], np.float32)

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor) -> Tensor:
        if weight.shape[0] > 1:
            x = self.norm(x.reshape(x.shape[0], -1, weight.shape[0]), weight, self.no_bias).reshape(x.shape)
        if not self.in_halves:
            return rotated(x, cos, sin, self.is_interleaved)
        half, angles = self.head_dim // 2, cos.shape[1] // 2
        first = rotated(x[:, :, :half], cos[:, :angles], sin[:, :angles], False)
        return ops.cat((first, rotated(x[:, :, half:], cos[:, angles:], sin[:, angles:], False)), -1)

    def construct(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, query_norm: Tensor, key_norm: Tensor
    ) -> Tensor:
        tokens = qkv.shape[0]
        heads = qkv.reshape(tokens, self.heads + 2 * self.kv_heads, self.head_dim)
        queries = self._rotate(heads[:, : self.heads], cos, sin, query_norm)
        keys = self._rotate(heads[:, self.heads : self.heads + self.kv_heads], cos, sin, key_norm)
        values = heads[:, self.heads + self.kv_heads :]
        return ops.cat((queries, keys, values), 1).reshape(qkv.shape)


class Activation(nn.Cell):
    """act(x), or act(gate) * up for x = [gate, up]."""

    def __init__(self, kind: str, gated: bool) -> None:
        super().__init__()
        self.kind = kind
        self.gated = gated

    def _activate(self, x: Tensor) -> Tensor:
        if self.kind == "gelu_tanh":
            # 0.5 * (1 + tanh(y)) is sigmoid(2 y); MindSpore's CPU tanh is wrong in the fourth digit.
            return x * ops.sigmoid(1.5957691216 * (x + 0.044715 * x * x * x))
        if self.kind == "gelu":
            return 0.5 * x * (1.0 + ops.erf(x * 0.70710678))
        if self.kind in ("silu", "quick_gelu"):
            return x * ops.sigmoid(x if self.kind == "silu" else 1.702 * x)
        return ops.relu(x)

    def construct(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self._activate(x)
        width = x.shape[1] // 2
        return self._activate(x[:, :width]) * x[:, width:]


class Attention(nn.Cell):
    """Paged attention by gathering each token's whole block table; memory is T x table width x block."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.write = ops.ScatterNdUpdate()
        self.attend = GatheredAttention(shape)

    def construct(
        self,
        qkv: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slots: Tensor,
        rows: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        tokens, (blocks, block_size) = qkv.shape[0], key_cache.shape[:2]
        heads = qkv.reshape(tokens, self.heads + 2 * self.kv_heads, self.head_dim)
        slots = ops.where(slots < 0, (blocks - 1) * block_size, slots)
        where = ops.stack((slots // block_size, slots % block_size), 1)
        keys = self.write(key_cache, where, heads[:, self.heads : self.heads + self.kv_heads])
        values = self.write(value_cache, where, heads[:, self.heads + self.kv_heads :])
        tables = ops.gather(block_tables, rows, 0)
        return self.attend(
            heads[:, : self.heads], ops.gather(keys, tables, 0), ops.gather(values, tables, 0), lengths
        )


class ReferenceKernels(MindSporeKernels):
    """MindSpore operators only; used where no C++ compiler was there."""

    name = "reference"

    def packed_zeros(self, outputs: int, inputs: int) -> Array:
        return aligned_zeros((outputs, inputs), self.dtype)

    def pack(self, packed: Array, first_output: int, rows: Array) -> int:
        packed[first_output : first_output + len(rows)] = rows
        return 0

    def linear(self, outputs: int) -> nn.Cell:
        return Linear(outputs)

    def experts(self, shape: ExpertsShape) -> nn.Cell:
        return Experts(shape, Activation(shape.activation, gated=True))

    def head_products(self, shape: HeadProductsShape) -> nn.Cell:
        return HeadProducts(shape, is_transposed=True)

    def columns(self, first: int, count: int) -> nn.Cell:
        return Columns(first, count)

    def latent_heads(self, heads: int, rope: int) -> nn.Cell:
        return LatentHeads(heads, rope)

    def embedding(self, width: int) -> nn.Cell:
        return Embedding()

    def norm(self, epsilon: float, centred: bool) -> nn.Cell:
        return Norm(epsilon, centred)

    def add_norm(self, epsilon: float, centred: bool) -> nn.Cell:
        return AddNorm(epsilon, centred)

    def rotary(
        self,
        shape: AttentionShape,
        epsilon: float,
        is_interleaved: bool = False,
        *,
        in_halves: bool = False,
    ) -> nn.Cell:
        return Rotary(shape, epsilon, is_interleaved, in_halves)

    def activation(self, kind: str, gated: bool) -> nn.Cell:
        return Activation(kind, gated)

    def attention(self, shape: AttentionShape) -> nn.Cell:
        return Attention(shape)

    def distance_attention(self, shape: AttentionShape, *, within_step: bool) -> nn.Cell:
        return StepAttention(shape) if within_step else DistanceAttention(shape, self._cache_writer(shape))

    def cross_attention(self, shape: AttentionShape) -> nn.Cell:
        return CrossAttention(shape)

    def write_cache(self, shape: AttentionShape) -> nn.Cell:
        return CacheWrite(self._cache_writer(shape))

    def _cache_writer(self, shape: AttentionShape) -> nn.Cell:
        return CacheWriter(shape)

    def cache_shapes(
        self, shape: AttentionShape, geometry: CacheGeometry
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        size = (geometry.num_blocks + 1, geometry.block_size, shape.kv_heads, shape.head_dim)
        return size, size

    def table_width(self, needed: int, maximum: int) -> int:
        """The next power of two: the gathered keys and values grow with the width."""
        width = 4
        while width < needed:
            width *= 2
        return min(width, maximum)
