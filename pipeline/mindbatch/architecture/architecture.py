"""The sizes of a decoder-only transformer: the common language of model files and layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from mindbatch.kernels.shapes import Alibi, ConvolutionShape, DeltaShape, Routing


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding: the angle of pair i at position p is p * inverse_frequencies[i]."""

    inverse_frequencies: tuple[float, ...]
    scale: float = 1.0
    """Factor on cosine and sine: YaRN's attention factor."""
    is_interleaved: bool = False
    """True if pair i is the numbers 2 i and 2 i + 1 of a head; else it is i and i + the number of pairs."""
    positions: int = 1
    """Positions of a token. With two, each rotates a half of the head; see `BlockPositions2D`."""


@dataclass(frozen=True)
class BlockPositions2D:
    """Two positions for each token, as GLM has them (Du et al., "GLM", 2022).

    The tokens before the first `start_id` are the context, and see each other; their first position counts
    them, and their second is 0. The tokens from `start_id` on are generated: their first position is that of
    a mask in the context, and their second counts from 1.
    """

    start_id: int
    mask_ids: tuple[int, ...]
    """Ids of mask tokens. Where a prompt has several of them, the first id here counts."""


@dataclass(frozen=True)
class Latent:
    """The sizes of latent attention (`models.deepseek_v3.Attention`)."""

    rank: int
    """Width of the latent, of which keys and values are made."""
    query_rank: int
    """Width of the vector of which queries are made; 0 if they are made of x itself."""
    plain: int
    rotated: int
    """Numbers of a query head that are not rotated, and that are."""
    value: int
    """Numbers of a value head."""
    norm_epsilon: float


@dataclass(frozen=True)
class Experts:
    """The mixtures of experts of a model."""

    routing: Routing
    intermediate_size: int
    """Inner size of each expert."""
    layers: tuple[int, ...]
    """The layers that have experts; the others have an MLP."""
    has_correction: bool = False
    """True if a vector is added to the scores when experts are chosen."""
    shared: tuple[int, ...] = ()
    """Inner sizes of the networks that compute every row, beside the chosen experts."""
    shared_is_gated: bool = False
    """True if each of them is weighted with the sigmoid of a product of its own with the row."""
    limit: float = 0.0
    """Bound of gates and ups, see `ExpertsShape`; 0 for none."""
    is_fused: bool = False
    """True if the checkpoint has the gates and ups of all experts in one tensor, the rest in another."""
    weighs_inputs: bool = False
    """True if weights multiply what experts take in; see `ExpertsShape`."""

    def of_layers(self, layers: Sequence[int]) -> Experts:
        kept = tuple(index for index, layer in enumerate(layers) if layer in self.layers)
        return replace(self, layers=kept)


@dataclass(frozen=True)
class HeadSizes:
    """The number of key/value heads of a layer, and the width of all its heads."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Recurrence:
    """The recurrent layers, which keep a state of each sequence instead of keys and values."""

    layers: tuple[int, ...]
    channels: int
    kernel: int
    """Channels of each layer's convolution, and the inputs that each output is made of."""
    delta: DeltaShape | None = None
    """The gated delta rule behind each convolution; None where there is none."""

    def convolution_of(self, ranks: int) -> ConvolutionShape:
        return ConvolutionShape(self.channels // ranks, self.kernel, self.delta is not None)

    def delta_of(self, ranks: int) -> DeltaShape:
        assert self.delta is not None, "a type of gated delta rules describes them"
        heads = self.delta.key_heads // ranks, self.delta.value_heads // ranks
        return replace(self.delta, key_heads=heads[0], value_heads=heads[1])

    def shapes(self, ranks: int) -> tuple[ConvolutionShape | DeltaShape, ...]:
        """The operations of a layer that keep a state, as one of `ranks` ranks computes them."""
        convolution = self.convolution_of(ranks)
        return (convolution,) if self.delta is None else (convolution, self.delta_of(ranks))


@dataclass(frozen=True)
class Encoder:
    """The encoder of an encoder-decoder, with the decoder's heads and widths."""

    num_layers: int
    buckets: int
    max_distance: int
    """Buckets of relative positions, and where they end; see `layers.attention.distance_buckets`."""
    is_gated: bool
    """True if the MLPs of encoder and decoder are gated."""
    start_id: int
    """The token that the decoder begins with; it is not part of the output."""


@dataclass(frozen=True)
class TypeDetails:
    """Base of what a type's file describes besides the `Architecture`, and only its own layers read."""

    @property
    def can_be_staged(self) -> bool:
        """True if each layer needs nothing but the hidden states of the layer before it."""
        return True


Details = TypeVar("Details", bound=TypeDetails)


@dataclass(frozen=True)
class Architecture:
    """The sizes of a decoder and what its layers compute with; a model's file says how they are assembled."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int
    norm_epsilon: float
    tied: bool
    """True if the head is the token embedding."""
    model_type: str = ""
    """Set by `registry.describe`."""

    kv_heads: int = 0
    """As many as `heads` where it is not set."""
    layer_heads: tuple[HeadSizes, ...] = ()
    """Heads of each layer, where they differ from kv_heads and head_dim."""
    cache_layers: tuple[int, ...] = ()
    """By layer, the layer whose keys and values it sees; empty where each sees its own."""
    windows: tuple[int, ...] = ()
    """Sliding window of each layer in tokens, 0 for full attention, which is the default."""
    windows_are_chunks: bool = False
    """True if windows do not slide but begin at their multiples."""
    attention_scales: tuple[float, ...] = ()
    """Factor on the query-key products of each layer; 1 / sqrt(head_dim) by default."""
    attention_cap: float = 0.0
    """Scores become cap * tanh(score / cap); 0 leaves them as they are."""
    has_sinks: bool = False
    """True if each head has a learned logit of its own in the softmax."""
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False

    rotary: Rotary | None = None
    """None where positions are learned (max_positions of them), or `alibi` stands for them."""
    layer_rotaries: tuple[Rotary | None, ...] = ()
    """Rotary positions of each layer, where they differ; None for a layer without any."""
    alibi: Alibi | None = None
    two_positions: BlockPositions2D | None = None

    activation: str = ""
    mlp_bias: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    recurrence: Recurrence | None = None
    encoder: Encoder | None = None
    norm_offset: float = 0.0
    """Added to the weights of RMS norms."""
    embedding_factor: float = 1.0
    logits_factor: float = 1.0
    logits_cap: float = 0.0
    """As `attention_cap`, of logits."""
    next_token_layers: int = field(default=0, compare=False)
    """Layers behind the last one that predict further tokens; they are not run."""
    details: TypeDetails = TypeDetails()
    """What the model's own type describes besides."""

    def __post_init__(self) -> None:
        usual = {
            "kv_heads": self.heads,
            "windows": (0,) * self.num_layers,
            "attention_scales": (self.head_dim**-0.5,) * self.num_layers,
        }
        for name, value in usual.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)  # it is frozen

    def details_of(self, kind: type[Details]) -> Details:
        """The details of the type whose layers ask for them."""
        assert isinstance(self.details, kind), f"this type's `describe` gives its {kind.__name__}"
        return self.details

    def with_layers(self, layers: Sequence[int]) -> Architecture:
        """The architecture of a model that has these of the layers alone."""
        rotaries, experts = self.layer_rotaries, self.experts
        return replace(
            self,
            num_layers=len(layers),
            layer_rotaries=tuple(rotaries[layer] for layer in layers) if rotaries else (),
            windows=tuple(self.windows[layer] for layer in layers),
            attention_scales=tuple(self.attention_scales[layer] for layer in layers),
            experts=experts and experts.of_layers(layers),
        )

    @property
    def num_positions(self) -> int:
        return 1 if self.two_positions is None else 2

    def is_recurrent(self, layer: int) -> bool:
        return self.recurrence is not None and layer in self.recurrence.layers

    def heads_of(self, layer: int) -> HeadSizes:
        return self.layer_heads[layer] if self.layer_heads else HeadSizes(self.kv_heads, self.head_dim)

    def cache_layer(self, layer: int) -> int:
        return self.cache_layers[layer] if self.cache_layers else layer

    def has_cache(self, layer: int) -> bool:
        return self.cache_layer(layer) == layer and not self.is_recurrent(layer)

    def rotary_of(self, layer: int) -> Rotary | None:
        return self.layer_rotaries[layer] if self.layer_rotaries else self.rotary
