"""The sizes of a decoder-only transformer: the common language of model files and layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from mindbatch.kernels.shapes import Alibi, ConvolutionShape, DeltaShape, Routing


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding: angle of pair i at position p is p * inverse_frequencies[i].

    scale: factor on cosine and sine (YaRN's attention factor; 1 elsewhere).
    is_interleaved: pair i is the numbers 2 i and 2 i + 1 of a head; else i and i + the number of pairs.
    positions: of a token; with two each half of a head is rotated by one of them, see `BlockPositions2D`.
    """

    inverse_frequencies: tuple[float, ...]
    scale: float = 1.0
    is_interleaved: bool = False
    positions: int = 1


@dataclass(frozen=True)
class BlockPositions2D:
    """Positions of models with a context: the tokens before the first `start_id`, which see each other.

    They have their place as their position, and 0 as the second. The tokens from `start_id` on have the
    place of a mask for theirs, and are counted by the second, from 1 on (Du et al., "GLM", 2022).

    mask_ids: of the masks; of those that a prompt has, the first kind counts.
    """

    start_id: int
    mask_ids: tuple[int, ...]


@dataclass(frozen=True)
class Latent:
    """The numbers of latent attention (`models.deepseek_v3.Attention`).

    rank: of the latent. query_rank: of the vector that queries are made of; 0 where that is x itself.
    plain, rotated: of a query, its two parts. value: of a head.
    """

    rank: int
    query_rank: int
    plain: int
    rotated: int
    value: int
    norm_epsilon: float


@dataclass(frozen=True)
class Experts:
    """The mixtures of experts of a model.

    intermediate_size: of each expert. layers: that have experts in place of one MLP.
    has_correction: there is a vector that is added to scores when experts are chosen.
    shared: inner sizes of the networks that compute every row, beside the chosen experts.
    shared_is_gated: each is weighted with the sigmoid of a product of its own with the row.
    limit: of gates and ups, see `ExpertsShape`; 0 where there is none.
    is_fused: the checkpoint has the gates and ups of all experts in one tensor, and the rest in another.
    weighs_inputs: see `ExpertsShape`.
    """

    routing: Routing
    intermediate_size: int
    layers: tuple[int, ...]
    has_correction: bool = False
    shared: tuple[int, ...] = ()
    shared_is_gated: bool = False
    limit: float = 0.0
    is_fused: bool = False
    weighs_inputs: bool = False

    def of_layers(self, layers: Sequence[int]) -> Experts:
        kept = tuple(index for index, layer in enumerate(layers) if layer in self.layers)
        return replace(self, layers=kept)


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of a layer's attention: its key/value heads, and the numbers of a head, of its queries too."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Recurrence:
    """The layers that keep a state of each sequence in place of keys and values.

    channels, kernel: of their convolutions. delta: of the gated delta rules behind these; None: of none.
    """

    layers: tuple[int, ...]
    channels: int
    kernel: int
    delta: DeltaShape | None = None

    def convolution_of(self, ranks: int) -> ConvolutionShape:
        return ConvolutionShape(self.channels // ranks, self.kernel, self.delta is not None)

    def delta_of(self, ranks: int) -> DeltaShape:
        assert self.delta is not None, "a type of gated delta rules describes them"
        heads = self.delta.key_heads // ranks, self.delta.value_heads // ranks
        return replace(self.delta, key_heads=heads[0], value_heads=heads[1])

    def shapes(self, ranks: int) -> tuple[ConvolutionShape | DeltaShape, ...]:
        """Operations of a layer that keep something of each sequence, of each of so many ranks."""
        convolution = self.convolution_of(ranks)
        return (convolution,) if self.delta is None else (convolution, self.delta_of(ranks))


@dataclass(frozen=True)
class Encoder:
    """Encoder of an encoder-decoder, whose heads and widths are the decoder's.

    buckets, farthest: of relative positions, see `kernels.distances`.
    is_gated: of the MLPs, the decoder's too.
    start_id: the token that every output begins with, and that is not part of it.
    """

    num_layers: int
    buckets: int
    farthest: int
    is_gated: bool
    start_id: int


@dataclass(frozen=True)
class TypeDetails:
    """Base of what the file of one type describes besides, and only that type's layers read."""

    @property
    def can_be_staged(self) -> bool:
        """True if each layer needs nothing but the hidden states of the layer before it."""
        return True


Details = TypeVar("Details", bound=TypeDetails)


@dataclass(frozen=True)
class Architecture:
    """The sizes of a decoder and what its layers compute with; a model's file says how they are assembled.

    activation and rotary: empty where the project has no layers for the model.
    rotary: None means learned positions, max_positions of them, or alibi.
    layer_rotaries: of each layer, where they differ; empty where all have `rotary`.
    model_type: `registry.describe` sets it. kv_heads: as many as heads, unless given.
    windows: sliding window of each layer in tokens, 0 for full attention, as everywhere unless given.
    windows_are_chunks: see `AttentionShape`.
    layer_heads: of each layer, where they differ; empty where all have kv_heads and head_dim.
    cache_layers: of each layer the one whose keys and values it sees; empty where that is itself.
    attention_scales: factor on the query-key products of each layer; 1 / sqrt(head_dim) unless given.
    attention_cap, logits_cap: scores and logits become cap * tanh(x / cap); with 0 they stay.
    has_sinks: each head has a logit of its own in the softmax, see `AttentionShape`.
    tied: the head is the token embedding.
    norm_offset: is added to the weights of RMS norms.
    next_token_layers: behind the last one, which predict further tokens; they are not run.
    embedding_factor, logits_factor: on embeddings, on logits.
    details: what the model's own type describes besides.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int
    norm_epsilon: float
    tied: bool
    model_type: str = ""
    kv_heads: int = 0
    activation: str = ""
    rotary: Rotary | None = None
    windows: tuple[int, ...] = ()
    attention_scales: tuple[float, ...] = ()
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    layer_rotaries: tuple[Rotary | None, ...] = ()
    attention_cap: float = 0.0
    logits_cap: float = 0.0
    alibi: Alibi | None = None
    has_sinks: bool = False
    experts: Experts | None = None
    embedding_factor: float = 1.0
    logits_factor: float = 1.0
    encoder: Encoder | None = None
    two_positions: BlockPositions2D | None = None
    latent: Latent | None = None
    recurrence: Recurrence | None = None
    windows_are_chunks: bool = False
    layer_heads: tuple[HeadSizes, ...] = ()
    cache_layers: tuple[int, ...] = ()
    norm_offset: float = 0.0
    details: TypeDetails = TypeDetails()
    next_token_layers: int = field(default=0, compare=False)

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
