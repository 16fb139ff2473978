"""Attention with a learned bias by distance, as T5's encoder and decoder have it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.operations.attention import distance_attention
from mindbatch.kernels.step import IntArray
from mindbatch.layers.attention import OfLayer
from mindbatch.layers.module import Module
from mindbatch.layers.rank import Rank
from mindbatch.layers.tokens import Tokens
from mindbatch.models.architecture import Architecture
from mindbatch.models.tensor_spec import Part, TensorSpec

_STACKS = ("encoder", "decoder")
_TABLE = "{}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


class DistanceBiases(Module):
    """The tables [buckets, heads] of both stacks, which all of their layers read."""

    def __init__(self, buckets: int, heads: int) -> None:
        self.buckets, self.heads = buckets, heads

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        for stack in _STACKS:
            yield TensorSpec(f"{name}.{stack}", (Part(_TABLE.format(stack), self.buckets, self.heads),))


class DistanceAttention(OfLayer):
    """qkv -> [T, heads * head_dim], over positions [first, length).

    stack: in the encoder's all tokens see each other, in a cache that is lent by the decoder's first layer.
    """

    def __init__(self, a: Architecture, layer: int, stack: str) -> None:
        super().__init__(a, 0 if stack == "encoder" else layer)
        self.stack = stack

    def bind(self, name: str, rank: Rank) -> None:
        """The bias of the rank's heads."""
        super().bind(name, rank)
        assert self.arch.encoder is not None
        first, last = rank.shard.bounds(self.arch.heads)
        table = rank.kernels.floats(rank.weights.get(f"positions.{self.stack}"))[:, first:last]
        bias = distance_bias(table, self.arch.encoder.farthest, causal=self.stack == "decoder")
        self.bias = rank.kernels.fixed(bias)

    def forward(self, qkv: Any, tokens: Tokens) -> Any:
        is_encoder = self.stack == "encoder"
        inputs = (qkv, *self.cache, *tokens.places, self.bias)
        return distance_attention(*inputs, shape=self.shape, within_step=is_encoder)


def distance_buckets(buckets: int, farthest: int, *, causal: bool) -> IntArray:
    """The bucket of key - query for each distance from -farthest to farthest, int32 [2 * farthest + 1].

    causal: all buckets are of keys before the query; else half of them are of those behind it.
    """
    distances = np.arange(-farthest, farthest + 1)
    behind = np.zeros_like(distances) if causal else np.where(distances > 0, buckets // 2, 0)
    num_buckets = buckets if causal else buckets // 2
    away = np.maximum(-distances, 0) if causal else np.abs(distances)
    exact = num_buckets // 2
    # In float32 and in this order, so that a distance on the edge of a bucket is where the model had it.
    ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact))
    steps = ratio / np.float32(math.log(farthest / exact)) * np.float32(num_buckets - exact)
    far = np.minimum(exact + steps.astype(np.int64), num_buckets - 1)
    return (behind + np.where(away < exact, away, far)).astype(np.int32)


def distance_bias(table: FloatArray, farthest: int, *, causal: bool) -> FloatArray:
    """float32 [heads, 2 * farthest + 1] of a learned table [buckets, heads]."""
    rows = table[distance_buckets(len(table), farthest, causal=causal)]
    return np.ascontiguousarray(rows.T, np.float32)
