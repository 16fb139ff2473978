"""Layers that keep something of each sequence: attention with its rotation, convolutions and delta rules."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mindbatch.architecture.architecture import Architecture, Rotary
from mindbatch.architecture.tensor_spec import Layout, Part, Sharding, fused, segments_of_rank
from mindbatch.kernels.arrays import FloatArray, KernelParameter
from mindbatch.kernels.operations.attention import attention, cross_attention, distance_attention
from mindbatch.kernels.operations.recurrent import causal_convolution, gated_delta
from mindbatch.kernels.operations.rotation import norm_by_sums, rotary, square_sums, tempered
from mindbatch.kernels.shapes import AttentionShape, ConvolutionShape, DeltaShape
from mindbatch.kernels.step import IntArray
from mindbatch.layers.linear import AllHeadsNorm, Norm, bias_of, reduced
from mindbatch.layers.rank import Module, Rank, Tensor, Tokens, declared
from mindbatch.parallel.topology import TensorSlice


def attention_shape(arch: Architecture, layer: int, shard: TensorSlice) -> AttentionShape:
    """The attention of a layer that one rank computes; a key/value head may be on several ranks."""
    sizes = arch.heads_of(layer)
    first, last = shard.bounds(arch.heads)
    first_kv, last_kv = shard.bounds(sizes.kv_heads)
    return AttentionShape(
        heads=last - first,
        kv_heads=last_kv - first_kv,
        head_dim=sizes.head_dim,
        scale=arch.attention_scales[layer],
        window=arch.windows[layer],
        softcap=arch.attention_cap,
        alibi=arch.alibi.of_heads(first, last) if arch.alibi else None,
        has_sinks=arch.has_sinks,
        is_chunked=arch.windows_are_chunks,
    )


def layer_shapes(
    arch: Architecture, layer: int, shard: TensorSlice
) -> AttentionShape | tuple[ConvolutionShape | DeltaShape, ...]:
    """The heads that this rank has a cache for in a layer, or what has states in a recurrent one.

    Empty of a layer that sees another's keys and values.
    """
    if arch.has_cache(layer):
        return attention_shape(arch, layer, shard)
    return arch.recurrence.shapes(shard.size) if arch.recurrence and arch.is_recurrent(layer) else ()


class LayerBound(Module):
    """Base of modules that compute with the heads and the cache of one layer."""

    def __init__(self, a: Architecture, layer: int) -> None:
        self.arch, self.layer = a, layer

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        self.shape, self.shard = attention_shape(self.arch, self.layer, rank.shard), rank.shard
        self.cache = rank.cache_of(self.arch.cache_layer(self.layer))


class PagedAttention(LayerBound):
    """qkv [T, (heads + 2 * kv_heads) * head_dim] -> [T, heads * head_dim], over the paged cache.

    sinks: name of the tensor of attention sinks, if the architecture has them.
    """

    def __init__(self, a: Architecture, layer: int, sinks: str = "") -> None:
        super().__init__(a, layer)
        if a.has_sinks:  # of which each rank has those of its heads
            self.sinks = declared(Part(sinks, a.heads), sharding=Sharding.OUTPUTS, layout=Layout.FLOAT32)

    def forward(self, qkv: Tensor, tokens: Tokens) -> Tensor:
        sinks = (self.sinks,) if self.arch.has_sinks else ()
        return attention(qkv, *self.cache, *tokens.attention_inputs, *sinks, shape=self.shape)


class SharedAttention(LayerBound):
    """queries [T, heads * head_dim] -> [T, heads * head_dim], over the keys and values of another layer."""

    def forward(self, queries: Tensor, tokens: Tokens) -> Tensor:
        sequences = (tokens.rows, tokens.block_tables, tokens.lengths)
        return cross_attention(queries, *self.cache, *sequences, shape=self.shape)


IDENTITY = Rotary((0.0,))
"""Rotates one pair of each head by an angle of 0, which changes nothing."""


class Rotation(LayerBound):
    """Norms query and key, in types with such norms, and rotates them, in layers with rotary positions."""

    def __init__(self, a: Architecture, layer: int) -> None:
        super().__init__(a, layer)
        self.rotary = a.rotary_of(layer)

    def forward(self, qkv: Tensor, tokens: Tokens, *norms: Norm | None) -> Tensor:
        """norms: those of query and key, None for one without a norm; or none at all."""
        weights = tuple(None if norm is None else norm.weight for norm in norms) or (None, None)
        if any(isinstance(norm, AllHeadsNorm) for norm in norms):
            qkv, weights = self._normed(qkv, weights), (None, None)
        if self.rotary is None and weights[0] is None:
            return qkv
        settings = self.rotary or IDENTITY
        inputs = (qkv, *tokens.angles(settings), *weights)
        return rotary(
            *inputs,
            shape=self.shape,
            epsilon=self.arch.norm_epsilon,
            is_interleaved=settings.is_interleaved,
            in_halves=settings.positions == 2,
        )

    def _normed(self, qkv: Tensor, weights: tuple[KernelParameter, ...]) -> Tensor:
        """Norms query and key over the heads of all ranks, which sum their squares."""
        arch, shape = self.arch, self.shape
        # A key/value head is on several ranks where there are fewer, and is summed as often.
        totals = (arch.heads * shape.head_dim, self.shard.size * shape.kv_heads * shape.head_dim)
        heads = ((arch.heads, shape.heads), (arch.kv_heads, shape.kv_heads))
        segments = tuple(segments_of_rank(whole, whole // own) for whole, own in heads)
        sums = reduced(square_sums(qkv, shape=shape, segments=segments), self.shard)
        settings = {"shape": shape, "epsilon": arch.norm_epsilon, "totals": totals}
        return norm_by_sums(qkv, sums, *weights, **settings)


class TemperedQueries(LayerBound):
    """qkv with queries times a factor by their position, see `operations.rotation.tempered`."""

    def __init__(self, a: Architecture, layer: int, floor: float, factor: float) -> None:
        super().__init__(a, layer)
        self.floor, self.factor = floor, factor

    def forward(self, qkv: Tensor, tokens: Tokens) -> Tensor:
        return tempered(qkv, tokens.positions, shape=self.shape, floor=self.floor, factor=self.factor)


class QueryRotation(Rotation):
    """Norms and rotates queries alone."""

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        self.shape = replace(self.shape, kv_heads=0)

    def forward(self, queries: Tensor, tokens: Tokens, *norms: Norm | None) -> Tensor:
        """norms: that of queries."""
        return super().forward(queries, tokens, *norms, None)


_TABLE = "{}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


class DistanceBiases(Module):
    """The tables [buckets, heads] of encoder and decoder, each shared by all layers of its stack."""

    def __init__(self, buckets: int, heads: int) -> None:
        self.encoder, self.decoder = (
            declared(Part(_TABLE.format(stack), buckets, heads)) for stack in ("encoder", "decoder")
        )


class DistanceAttention(LayerBound):
    """qkv -> [T, heads * head_dim], over positions [first, length), with a bias by distance.

    stack: "encoder" or "decoder". The encoder's tokens all see each other, and use the cache of the
    decoder's first layer.
    """

    def __init__(self, a: Architecture, layer: int, stack: str) -> None:
        super().__init__(a, 0 if stack == "encoder" else layer)
        self.stack = stack

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        assert self.arch.encoder is not None
        first, last = rank.shard.bounds(self.arch.heads)
        table = rank.kernels.floats(rank.weights.parameters[f"positions.{self.stack}"])[:, first:last]
        bias = distance_bias(table, self.arch.encoder.max_distance, causal=self.stack == "decoder")
        self.bias = rank.kernels.fixed(bias)

    def forward(self, qkv: Tensor, tokens: Tokens) -> Tensor:
        is_encoder = self.stack == "encoder"
        inputs = (qkv, *self.cache, *tokens.attention_inputs, self.bias)
        return distance_attention(*inputs, shape=self.shape, within_step=is_encoder)


def distance_buckets(buckets: int, max_distance: int, *, causal: bool) -> IntArray:
    """The bucket of key - query for each distance from -max_distance on, int32 [2 * max_distance + 1].

    causal: all buckets are for keys before the query; else half of them are for keys behind it.
    """
    distances = np.arange(-max_distance, max_distance + 1)
    behind = np.zeros_like(distances) if causal else np.where(distances > 0, buckets // 2, 0)
    num_buckets = buckets if causal else buckets // 2
    away = np.maximum(-distances, 0) if causal else np.abs(distances)
    exact = num_buckets // 2
    # In float32 and in this order, so that a distance on the edge of a bucket is where the model had it. The
    # logarithm is of float64 and rounded once: the digits of NumPy's in float32 depend on the processor.
    ratio = np.maximum(away, 1).astype(np.float32) / np.float32(exact)
    ratio = np.log(ratio, dtype=np.float64).astype(np.float32)
    steps = ratio / np.float32(math.log(max_distance / exact)) * np.float32(num_buckets - exact)
    far = np.minimum(exact + steps.astype(np.int64), num_buckets - 1)
    return (behind + np.where(away < exact, away, far)).astype(np.int32)


def distance_bias(table: FloatArray, max_distance: int, *, causal: bool) -> FloatArray:
    """Spreads a learned table [buckets, heads] over distances: float32 [heads, 2 * max_distance + 1]."""
    rows = table[distance_buckets(len(table), max_distance, causal=causal)]
    return np.ascontiguousarray(rows.T, np.float32)


class CausalConvolution(Module):
    """x [T, >= channels] -> [T, channels] by a depthwise causal convolution.

    parts: channels in the order in which x has them; each rank has some of every part.
    """

    def __init__(self, a: Architecture, layer: int, *parts: Part, bias: bool = False) -> None:
        self.arch, self.layer = a, layer
        self.weight = declared(*parts, sharding=Sharding.OUTPUTS, layout=Layout.FLOAT32)
        biases = map(bias_of, parts)
        self.bias = declared(*biases, sharding=Sharding.OUTPUTS, layout=Layout.FLOAT32) if bias else None

    def bind(self, name: str, rank: Rank) -> None:
        """Takes the weights, transposed to [kernel, channels], and the layer's states."""
        super().bind(name, rank)
        assert self.arch.recurrence is not None
        self.weight = rank.kernels.fixed(np.ascontiguousarray(rank.kernels.floats(self.weight).T))
        self.shape = self.arch.recurrence.convolution_of(rank.shard.size)
        self.state = rank.cache_of(self.layer)[0]

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        return causal_convolution(x, self.weight, self.bias, self.state, *tokens.sequences, shape=self.shape)


class GatedDelta(Module):
    """qkv and gates -> [T, value heads * value_dim] by the gated delta rule.

    decay, bias: one number for each value head, see `kernels.operations.recurrent.gated_delta`; the
    checkpoint has log(-decay).
    """

    def __init__(self, a: Architecture, layer: int, decay: Part, bias: Part) -> None:
        self.arch, self.layer = a, layer
        self.decay, self.bias = (
            declared(part, sharding=Sharding.OUTPUTS, layout=Layout.FLOAT32) for part in (decay, bias)
        )

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        assert self.arch.recurrence is not None
        # Of float64 and rounded once: the digits of NumPy's in float32 depend on the processor.
        power = np.exp(rank.kernels.floats(self.decay), dtype=np.float64).astype(np.float32)
        self.decay = rank.kernels.fixed(-power)
        self.shape = self.arch.recurrence.delta_of(rank.shard.size)
        self.state = rank.cache_of(self.layer)[1]

    def forward(self, qkv: Tensor, gates: Tensor, tokens: Tokens) -> Tensor:
        inputs = (qkv, gates, self.decay, self.bias, self.state)
        return gated_delta(*inputs, *tokens.sequences, shape=self.shape)


def channels(source: str, widths: Sequence[int], kernel: int, units: Sequence[int]) -> tuple[Part, ...]:
    """Parts of a depthwise convolution that follow one another. units: channels that stay on one rank."""
    return tuple(replace(part, is_depthwise=True) for part in fused(source, widths, kernel, units))
