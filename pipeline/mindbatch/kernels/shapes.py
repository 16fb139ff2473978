"""Shapes that operations take as settings: attention, experts, products of heads, the cache."""

from __future__ import annotations

import math
from ctypes import c_float
from dataclasses import dataclass, replace
from typing import Annotated


@dataclass(frozen=True)
class OneOf:
    """Annotates a setting that is one of some names; C++ has an enum of them."""

    enum: str
    names: tuple[str, ...]


WeightKind = Annotated[
    str, OneOf("WeightKind", ("float32", "bfloat16", "int8", "int4", "float4", "int8_groups", "float8"))
]
"""Name of how the C++ library keeps a matrix; the last four have scales for groups of inputs."""
Activation = Annotated[
    str, OneOf("Activation", ("gelu_tanh", "gelu", "silu", "relu", "quick_gelu", "sigmoid", "identity"))
]
"""Name of a function of single numbers."""


@dataclass(frozen=True)
class AttentionShape:
    """The slice of attention that one rank computes.

    window: the number of latest positions that a token sees, its own included; 0 for all.
    is_chunked: windows do not slide but begin at multiples of `window`, and a token sees those of its own.
    scale: the factor on query-key products.
    softcap: scores become softcap * tanh(score / softcap); with 0 they stay.
    alibi: the biases by position that are added to the scores of this rank's heads, if any.
    has_sinks: the softmax of each head has one more logit, which adds no value.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    alibi: Alibi | None = None
    softcap: float = 0.0
    has_sinks: bool = False
    is_chunked: bool = False

    @property
    def widths(self) -> tuple[int, int, int]:
        """Numbers of query, key and value."""
        keys = self.kv_heads * self.head_dim
        return self.heads * self.head_dim, keys, keys

    @property
    def qkv_width(self) -> int:
        return sum(self.widths)


@dataclass(frozen=True)
class ExpertsShape:
    """The slice of a layer of experts that one rank computes.

    inner: the width of each expert on this rank, between its two products. activation: the gate's.
    has_biases: vectors are added to the router's logits and to both products, or scale the experts' weights.
    has_logits: the router's logits are an input, computed of something else than the experts' input.
    limit: above 0, gates are at most it and ups within it on both sides, and an up counts as 1 + up; gates
        and ups are interleaved in the first product then.
    weighs_inputs: a row's weights multiply the inputs of its experts, not their outputs.
    """

    routing: Routing
    inner: int
    activation: Activation
    has_biases: bool = False
    limit: float = 0.0
    weighs_inputs: bool = False
    has_logits: bool = False


@dataclass(frozen=True)
class HeadProductsShape:
    """Products of each head's numbers with a matrix of its own.

    Head h reads `inputs` numbers of a row from h * stride + first on.
    """

    heads: int
    stride: int
    first: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class ConvolutionShape:
    """The channels of a causal convolution that one rank computes, each with weights of its own.

    kernel: the number of inputs of an output. is_activated: a SiLU follows.
    """

    channels: int
    kernel: int
    is_activated: bool = False

    @property
    def state(self) -> tuple[int, ...]:
        """Shape of a sequence's state: its latest inputs, which later outputs need."""
        return self.kernel - 1, self.channels


STATE_PANEL = 16
"""Columns of a head's matrix that lie together, kStatePanel in csrc/variant_table.h."""


@dataclass(frozen=True)
class DeltaShape:
    """The heads of a gated delta rule that one rank computes; neighbouring value heads share a key head."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def state(self) -> tuple[int, ...]:
        """Shape of a sequence's state: a matrix [key_dim, value_dim] for each value head, in panels."""
        return self.value_heads, -(-self.value_dim // STATE_PANEL) * self.key_dim, STATE_PANEL


CacheShapes = tuple[tuple[int, ...], tuple[int, ...]]
"""Shapes of one layer's key and value cache; the first dimension is the block."""


@dataclass(frozen=True)
class CacheGeometry:
    """Size of the paged cache. One block more than num_blocks is allocated: padding is written there.

    num_states: slots for the states of sequences, in models with recurrent layers.
    """

    num_blocks: int
    block_size: int
    num_states: int = 0


@dataclass(frozen=True)
class Routing:
    """Scores are the softmax of the router's logits over all experts, or their sigmoids.

    The best `chosen` experts compute a token; ties go as torch.topk lets them. Each output is weighted
    with its score times `scale`.

    is_normalised: the scores of the chosen are divided by their sum.
    groups, chosen_groups: experts outside the best groups are never chosen.
    group_best: a group scores as much as so many of its best experts together.
    """

    experts: int
    chosen: int
    is_sigmoid: bool = False
    is_normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1
    group_best: int = 1


@dataclass(frozen=True)
class Alibi:
    """The score of a key at position p is higher by factor * slope * p.

    slopes: of each head.
    is_rounded: slope, position and their product are bfloat16, as Falcon was trained.
    """

    slopes: tuple[float, ...]
    factor: float = 1.0
    is_rounded: bool = False

    def of_heads(self, first: int, last: int) -> Alibi:
        """Restricts the shape to the heads from first to last - 1."""
        return replace(self, slopes=self.slopes[first:last])


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """The paper's slopes for a power of two n, powers of 2^(-8 / n); behind them every other one of 2 n."""
    whole = 1 << (heads.bit_length() - 1)
    first, between = _base(whole), _base(2 * whole)
    powers = [first**power for power in range(1, whole + 1)]
    powers += [between**power for power in range(1, 2 * (heads - whole), 2)]
    return tuple(c_float(power).value for power in powers)


def _base(heads: int) -> float:
    """2^(-8 / heads) in float32, of which the models take powers."""
    return c_float(2 ** -(2 ** -(math.log2(heads) - 3))).value
