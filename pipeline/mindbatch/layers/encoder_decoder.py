"""What an encoder-decoder has beside a decoder: attention by distance, cross-attention, the encoder's end.

The cache of a sequence begins with its encoder's positions. In the decoder's layers these hold the keys and
values for cross-attention; while the encoder computes, those of the first layer hold its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.layer import Layer, Operation
from mindbatch.kernels.shapes import AttentionShape
from mindbatch.layers.decoder import Decoder, Network, Tensors
from mindbatch.layers.linear import ColumnLinear, RowLinear
from mindbatch.layers.weights import Weights
from mindbatch.parallel.topology import TensorSlice

if TYPE_CHECKING:
    from mindspore import Parameter, Tensor

Cache = tuple["Parameter", "Parameter"]


class DistanceAttention(Layer):
    """qkv projection, attention over positions [first, length) with a bias by distance, output projection."""

    def __init__(
        self,
        name: str,
        shape: AttentionShape,
        bias: FloatArray,
        weights: Weights,
        cache: Cache,
        kernels: Kernels,
        shard: TensorSlice,
        *,
        is_of_encoder: bool,
    ) -> None:
        """`bias`: see `kernels.distances.distance_bias`, of the rank's heads."""
        self.qkv = ColumnLinear(f"{name}.qkv", weights, kernels)
        self.attend = kernels.distance_attention(shape, within_step=is_of_encoder)
        self.key_cache, self.value_cache = cache
        self.bias = kernels.fixed(bias)
        self.output = RowLinear(f"{name}.output", weights, kernels, shard)

    def construct(self, x: Tensor, angles: Tensors, step: Tensors, adapters: Tensors) -> Tensor:
        qkv = self.qkv(x, adapters)
        return self.output(self.attend(qkv, self.key_cache, self.value_cache, *step, self.bias), adapters)


class CrossAttention(Layer):
    """Query projection, attention over the encoder's positions, output projection."""

    def __init__(
        self,
        name: str,
        shape: AttentionShape,
        weights: Weights,
        cache: Cache,
        kernels: Kernels,
        shard: TensorSlice,
    ) -> None:
        self.query = ColumnLinear(f"{name}.query", weights, kernels)
        self.attend = kernels.cross_attention(shape)
        self.key_cache, self.value_cache = cache
        self.output = RowLinear(f"{name}.output", weights, kernels, shard)

    def construct(self, x: Tensor, step: Tensors, adapters: Tensors) -> Tensor:
        _, rows, tables, _, firsts, _ = step  # a decoder's own positions begin where its encoder's end
        attended = self.attend(
            self.query(x, adapters), self.key_cache, self.value_cache, rows, tables, firsts
        )
        return self.output(attended, adapters)


class CrossBlock(Layer):
    """x + attention(norm(x)), the same with cross-attention and the MLP; the next norm has the last sum."""

    def __init__(
        self,
        attention: tuple[Operation, Operation],
        cross: tuple[Operation, Operation],
        mlp: tuple[Operation, Operation],
    ) -> None:
        """Each with its norm before it."""
        self.attention_norm, self.attention = attention
        self.cross_norm, self.cross = cross
        self.mlp_norm, self.mlp = mlp

    def construct(
        self, update: Tensor, residual: Tensor, angles: Tensors, step: Tensors, adapters: Tensors
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.attention_norm(update, residual)
        x, residual = self.cross_norm(self.attention(x, angles, step, adapters), residual)
        x, residual = self.mlp_norm(self.cross(x, step, adapters), residual)
        return self.mlp(x, adapters), residual


class CrossCache(Layer):
    """The encoder's hidden states -> their keys and values in the cache of a layer of the decoder."""

    def __init__(
        self, name: str, shape: AttentionShape, weights: Weights, cache: Cache, kernels: Kernels
    ) -> None:
        """name: of the layer's cross-attention."""
        self.project = ColumnLinear(f"{name}.key_value", weights, kernels)
        self.key_cache, self.value_cache = cache
        self.write = kernels.write_cache(shape)

    def construct(self, hidden: Tensor, slots: Tensor, adapters: Tensors) -> Tensor:
        return self.write(hidden, self.project(hidden, adapters), self.key_cache, self.value_cache, slots)


class Encoder(Layer):
    """The tokens of whole inputs to hidden states [T, hidden_size], which the caches have then."""

    def __init__(self, layers: Decoder, caches: Sequence[CrossCache]) -> None:
        self.layers = layers
        self.caches = [*caches]

    def construct(self, ids: Tensor, positions: Tensor, step: Tensors, adapters: Tensors) -> Tensor:
        hidden = self.layers(ids, positions, step, adapters)
        for cache in self.caches:
            hidden = cache(hidden, step[0], adapters)
        return hidden


class EncoderDecoder(Network):
    """A decoder and head whose sequences have an input that the encoder computes before."""

    def __init__(self, encoder: Encoder, decoder: Decoder, head: Operation) -> None:
        super().__init__(decoder, head)
        self.encoder = encoder
