"""Attention with a learned bias by distance, as T5's encoder and decoder have it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mindbatch.kernels.distances import distance_bias
from mindbatch.kernels.operations.attention import distance_attention
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
        """Both."""
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
