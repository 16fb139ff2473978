"""Layers that keep a state of each sequence in place of keys and values."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mindbatch.kernels.operations.recurrent import causal_convolution, gated_delta
from mindbatch.layers.linear import bias_of
from mindbatch.layers.rank import Module, Rank, Tokens, declared
from mindbatch.models.architecture import Architecture
from mindbatch.models.tensor_spec import Layout, Part, Sharding, fused


class CausalConvolution(Module):
    """x [T, >= channels] -> [T, channels]: each channel's latest inputs times weights of its own.

    parts: of the channels, in the order in which x has them; each rank has some of every part.
    """

    def __init__(self, a: Architecture, layer: int, *parts: Part, bias: bool = False) -> None:
        self.arch, self.layer = a, layer
        self.weight = declared(*parts, sharding=Sharding.OUTPUTS, layout=Layout.FLOAT32)
        biases = map(bias_of, parts)
        self.bias = declared(*biases, sharding=Sharding.OUTPUTS, layout=Layout.FLOAT32) if bias else None

    def bind(self, name: str, rank: Rank) -> None:
        """Takes the weights, an input's of all channels side by side, and the layer's states."""
        super().bind(name, rank)
        assert self.arch.recurrence is not None
        self.weight = rank.kernels.fixed(np.ascontiguousarray(rank.kernels.floats(self.weight).T))
        self.shape = self.arch.recurrence.convolution_of(rank.shard.size)
        self.state = rank.cache_of(self.layer)[0]

    def forward(self, x: Any, tokens: Tokens) -> Any:
        return causal_convolution(x, self.weight, self.bias, self.state, *tokens.sequences, shape=self.shape)


class GatedDelta(Module):
    """qkv and gates -> [T, value heads * value_dim] by the gated delta rule.

    decay, bias: of each value head, see `operations.recurrent.gated_delta`; of the first the checkpoint has
    the logarithm of its negative.
    """

    def __init__(self, a: Architecture, layer: int, decay: Part, bias: Part) -> None:
        self.arch, self.layer = a, layer
        self.decay, self.bias = (
            declared(part, sharding=Sharding.OUTPUTS, layout=Layout.FLOAT32) for part in (decay, bias)
        )

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        assert self.arch.recurrence is not None
        self.decay = rank.kernels.fixed(-np.exp(rank.kernels.floats(self.decay)))
        self.shape = self.arch.recurrence.delta_of(rank.shard.size)
        self.state = rank.cache_of(self.layer)[1]

    def forward(self, qkv: Any, gates: Any, tokens: Tokens) -> Any:
        inputs = (qkv, gates, self.decay, self.bias, self.state)
        return gated_delta(*inputs, *tokens.sequences, shape=self.shape)


def channels(source: str, widths: Sequence[int], kernel: int, units: Sequence[int]) -> tuple[Part, ...]:
    """Parts of a convolution's channels, which follow one another. units: channels that stay together."""
    return tuple(replace(part, is_depthwise=True) for part in fused(source, widths, kernel, units))
