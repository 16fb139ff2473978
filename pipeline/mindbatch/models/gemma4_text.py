"""gemma4_text: Gemma 3's layers with heads of two sizes, shared keys and values, and an input of each layer.

Also the text part of gemma4, whose images and sounds are not read. Of arrays: see `models.llama`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mindbatch.architecture.architecture import Architecture, Experts, HeadSizes, Rotary, TypeDetails
from mindbatch.architecture.tensor_spec import Layout, Part
from mindbatch.config_json.experts import read_count, read_routing
from mindbatch.config_json.forms import JsonValue
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import plain_frequencies, plain_rotary
from mindbatch.config_json.sizes import FULL, SLIDING, kinds_of_layers
from mindbatch.kernels.operations.dense import activation, columns, group_norm, joined
from mindbatch.kernels.operations.dense import norm as plain_norm
from mindbatch.kernels.operations.experts import router_logits
from mindbatch.kernels.operations.recurrent import gated
from mindbatch.layers.attention import LayerBound, PagedAttention, QueryRotation, Rotation, SharedAttention
from mindbatch.layers.experts import Biases, Mixture, Router
from mindbatch.layers.linear import (
    ColumnLinear,
    GroupNorm,
    ReplicatedLinear,
    RowLinear,
    TokenEmbedding,
    UnitNorm,
)
from mindbatch.layers.rank import Module, Rank, Tensor, Tokens, declared
from mindbatch.models import gemma2, llama

PER_LAYER = "per_layer"
MEAN_FACTOR: float = 0.5**0.5
"""Of the sum of two inputs of layers."""
WINDOWS_BUT_EVERY = 6


@dataclass(frozen=True)
class PerLayerInputs:
    """Inputs of each layer beside hidden states: `size` numbers a token, of a table of `vocabulary` rows."""

    size: int
    vocabulary: int


@dataclass(frozen=True)
class Gemma4Details(TypeDetails):
    """wide_layers: the last so many, whose MLPs are twice as wide.
    shares_values: in layers without a window values are made of what keys are made of.
    """

    wide_layers: int
    shares_values: bool
    per_layer: PerLayerInputs | None

    @property
    def can_be_staged(self) -> bool:
        return self.per_layer is None


def describe(reader: ConfigReader) -> Architecture:
    reader.needs("use_bidirectional_attention", [None, "vision"])  # of images alone
    arch = llama.describe_family(
        reader,
        bias_key="attention_bias",
        qk_norm=True,
        activation_key="hidden_activation",
        rotary=read_proportional,
    )
    kinds, window = read_kinds(reader, arch.num_layers), reader.positive("sliding_window")
    heads = read_heads(reader, arch, kinds)
    shares = read_count(reader, "num_kv_shared_layers", arch.num_layers - 1)
    local = plain_rotary(reader.number("rope_local_base_freq"), arch.head_dim)
    return replace(
        arch,
        windows=tuple(window if kind == SLIDING else 0 for kind in kinds),
        layer_rotaries=tuple(local if kind == SLIDING else arch.rotary for kind in kinds),
        layer_heads=heads,
        attention_scales=(1.0,) * arch.num_layers,
        cache_layers=read_cache_layers(reader, kinds, shares),
        details=Gemma4Details(
            wide_layers=shares if reader.flag("use_double_wide_mlp") else 0,
            shares_values=reader.flag("attention_k_eq_v"),
            per_layer=read_per_layer(reader, arch.vocab_size),
        ),
        experts=read_experts(reader, arch.num_layers) if reader.flag("enable_moe_block") else None,
        embedding_factor=arch.hidden_size**0.5,
        logits_cap=gemma2.read_cap(reader, "final_logit_softcapping"),
    )


def read_kinds(reader: ConfigReader, layers: int) -> Sequence[str]:
    """Kind of each layer; the last one has no window."""
    usual = [SLIDING if (layer + 1) % WINDOWS_BUT_EVERY else FULL for layer in range(layers - 1)]
    kinds = kinds_of_layers(reader, (FULL, SLIDING), [*usual, FULL])
    if kinds[-1] != FULL:
        reader.error("layer_types", f"must end with {FULL}")
    return kinds


def read_heads(reader: ConfigReader, arch: Architecture, kinds: Sequence[str]) -> tuple[HeadSizes, ...]:
    """Heads of each layer: those without a window have sizes of their own."""
    config = reader.value("per_layer_config")
    if config is not None:
        reader.ignore(["global_head_dim", "num_global_key_value_heads"])
        by_layer = config if isinstance(config, Mapping) else {}
        if by_layer is not config or by_layer.keys() - set(map(str, range(len(kinds)))):
            reader.error("per_layer_config", "must have settings by the number of a layer, as text")
        return tuple(_own_heads(reader, arch, by_layer.get(str(layer), {})) for layer in range(len(kinds)))
    own = reader.flag("attention_k_eq_v") and reader.raw("num_global_key_value_heads") is not None
    kv_heads = reader.positive("num_global_key_value_heads") if own else arch.kv_heads
    reader.ignore(["num_global_key_value_heads"])
    usual = HeadSizes(arch.kv_heads, arch.head_dim)
    whole = HeadSizes(kv_heads, reader.positive("global_head_dim"))
    _check_heads(reader, "num_global_key_value_heads", arch, whole)
    return tuple(usual if kind == SLIDING else whole for kind in kinds)


def _own_heads(reader: ConfigReader, arch: Architecture, settings: JsonValue) -> HeadSizes:
    inner = reader.within("per_layer_config", settings)
    sizes = HeadSizes(
        inner.positive("num_key_value_heads", arch.kv_heads), inner.positive("head_dim", arch.head_dim)
    )
    _check_heads(reader, "per_layer_config", arch, sizes)
    return sizes


def _check_heads(reader: ConfigReader, key: str, arch: Architecture, sizes: HeadSizes) -> None:
    if arch.heads % sizes.kv_heads:
        reader.error(key, f"key/value heads must divide num_attention_heads={arch.heads}")
    if sizes.head_dim % 2:
        reader.error(key, "heads must have an even size for rotary positions")


def read_cache_layers(reader: ConfigReader, kinds: Sequence[str], shares: int) -> tuple[int, ...]:
    """Whose keys and values each layer sees: the last ones those of the last of their kind before them."""
    first = len(kinds) - shares
    latest = {kind: layer for layer, kind in enumerate(kinds[:first])}
    if {*kinds[first:]} - latest.keys():
        reader.error("num_kv_shared_layers", "leaves layers without one of their kind to share with")
        return tuple(range(len(kinds)))
    return tuple(layer if layer < first else latest[kind] for layer, kind in enumerate(kinds))


def read_per_layer(reader: ConfigReader, vocabulary: int) -> PerLayerInputs | None:
    """Inputs of the layers, where the model has any: with a size of 0 it has none."""
    size = reader.raw("hidden_size_per_layer_input")
    rows = reader.positive("vocab_size_per_layer_input")
    if size in (0, None):
        return None
    if rows < vocabulary:
        reader.error("vocab_size_per_layer_input", f"must be at least vocab_size={vocabulary}")
    return PerLayerInputs(reader.positive("hidden_size_per_layer_input"), rows)


def read_experts(reader: ConfigReader, layers: int) -> Experts:
    sparse = tuple(range(layers))
    routing = read_routing(reader, "num_experts", "top_k_experts", is_normalised=True, layers=sparse)
    return Experts(routing, reader.positive("moe_intermediate_size"), sparse, is_fused=True)


def read_proportional(reader: ConfigReader, head_dim: int, max_positions: int) -> Rotary:
    """The rotary embedding of layers without a window: the frequencies of a whole head, the later ones 0."""
    scaling = reader.value("rope_scaling")
    if scaling != {"rope_type": "proportional"}:
        reader.error("rope_scaling", "must have rope_type proportional, as Gemma 4 has")
    share = reader.number("partial_rotary_factor")
    if share > 1:
        reader.error("partial_rotary_factor", "must be at most 1")
    frequencies = plain_frequencies(reader.number("rope_theta"), size := read_whole_size(reader, head_dim))
    frequencies[int(share * size // 2) :] = 0
    return Rotary(tuple(map(float, frequencies)))


def read_whole_size(reader: ConfigReader, head_dim: int) -> int:
    """Numbers of a head in the layers without a window, which all have as many."""
    by_layer = reader.value("per_layer_config")
    if not isinstance(by_layer, Mapping):
        return reader.positive("global_head_dim")
    sizes = {own.get("head_dim", head_dim) for own in by_layer.values() if isinstance(own, Mapping)}
    if len(sizes) != 1 or type(size := sizes.pop()) is not int or size < 2:
        reader.error("per_layer_config", "must have one head_dim, of the layers without a window")
        return head_dim
    return int(size)


class Attention(Module):
    """Query, key and value with norms of heads, values' without weights; or queries alone."""

    def __init__(self, a: Architecture, source: str, layer: int) -> None:
        sizes, has_cache = a.heads_of(layer), a.has_cache(layer)
        shares_values = a.details_of(Gemma4Details).shares_values
        query, keys, hidden = a.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim, a.hidden_size
        self.q_norm = llama.norm(a, f"{source}.q_norm", sizes.head_dim)
        parts = [Part(f"{source}.q_proj.weight", query, hidden, unit=sizes.head_dim)]
        self.has_cache, self.has_values = has_cache, not (shares_values and a.windows[layer] == 0)
        self.rotate: Module = Rotation(a, layer) if has_cache else QueryRotation(a, layer)
        self.attend: LayerBound = PagedAttention(a, layer) if has_cache else SharedAttention(a, layer)
        if has_cache:
            key, value = (
                Part(f"{source}.{which}_proj.weight", keys, hidden, unit=sizes.head_dim, is_shared=True)
                for which in "kv"
            )
            parts.append(key)
            self.k_norm = llama.norm(a, f"{source}.k_norm", sizes.head_dim)
            self.v_norm = UnitNorm(sizes.head_dim)
            if self.has_values:
                self.value = ColumnLinear(value, bias=a.qkv_bias)
        self.qk = ColumnLinear(*parts, bias=a.qkv_bias)
        self.epsilon = a.norm_epsilon
        joined = Part(f"{source}.o_proj.weight", hidden, query, unit=sizes.head_dim)
        self.output = RowLinear(joined, bias=a.output_bias)

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        qk = self.qk(x_TH, tokens)
        if not self.has_cache:
            return self.output(self.attend(self.rotate(qk, tokens, self.q_norm), tokens), tokens)
        shape = self.attend.shape
        if self.has_values:
            values = self.value(x_TH, tokens)
        else:
            first, count = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
            values = columns(qk, first=first, count=count)
        qkv = joined(qk, group_norm(values, self.v_norm.weight, epsilon=self.epsilon))
        return self.output(self.attend(self.rotate(qkv, tokens, self.q_norm, self.k_norm), tokens), tokens)


class ScaledRouter(Router):
    """A router of what is normed and scaled before; the scale becomes a part of its matrix."""

    def __init__(self, a: Architecture, source: str, experts: int) -> None:
        super().__init__(f"{source}.proj.weight", experts, a.hidden_size)
        self.scale = declared(Part(f"{source}.scale", a.hidden_size), layout=Layout.FLOAT32)
        self.norm, self.epsilon = UnitNorm(a.hidden_size), a.norm_epsilon

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        weight, scale = map(rank.kernels.floats, (self.weight, self.scale))
        factor = np.float32(weight.shape[1] ** -0.5)
        self.weight = rank.kernels.fixed(weight * (scale * factor))

    def forward(self, x_TH: Tensor) -> Tensor:
        unit_TH = plain_norm(x_TH, self.norm.weight, None, epsilon=self.epsilon, centred=False)
        logits: Tensor = router_logits(unit_TH, self.weight)
        return logits


class SparseMlp(Mixture):
    """Experts of the normed x that a router of x itself chooses; each weight times a scale of its expert."""

    def __init__(self, a: Architecture, source: str) -> None:
        settings = a.experts
        assert settings is not None
        count = settings.routing.experts
        router = ScaledRouter(a, f"{source}.router", count)
        inner = settings.intermediate_size
        super().__init__(router, settings.routing, inner, a.activation, has_logits=True)
        self.stack_fused(f"{source}.experts", count, a.hidden_size)
        self.scales = [Biases(Part(f"{source}.router.per_expert_scale", count))]
        self.before, self.after = (
            llama.norm(a, f"{source}.{which}_feedforward_layernorm_2") for which in ("pre", "post")
        )

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        return self.after(self.routed(self.before(x_TH), self.router(x_TH)))


class LayerFactor(Module):
    """x times one number of the checkpoint."""

    def __init__(self, source: str) -> None:
        self.weight = declared(Part(source, 1))

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        self.factor = float(rank.kernels.floats(self.weight)[0])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class PerLayerMix(Module):
    """x [T, H] -> what a layer adds to it: its own input [T, P] times act(gate(x)), and a matrix of that."""

    def __init__(self, a: Architecture, source: str, layer: int, size: int) -> None:
        self.size, self.first, self.activation = size, layer * size, a.activation
        self.gate = ReplicatedLinear(Part(f"{source}.per_layer_input_gate.weight", self.size, a.hidden_size))
        self.project = ReplicatedLinear(
            Part(f"{source}.per_layer_projection.weight", a.hidden_size, self.size)
        )
        self.norm = llama.norm(a, f"{source}.post_per_layer_input_norm")

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        active_TP = activation(self.gate(x_TH, tokens), kind=self.activation, gated=False)
        inputs = tokens.shared[PER_LAYER]  # [T, layers * P]
        settings = {"kind": "identity", "width": self.size, "first": self.first, "epsilon": 0.0}
        return self.norm(self.project(gated(active_TP, inputs, None, **settings), tokens))


class PerLayerTable(TokenEmbedding):
    """The embedding that makes inputs of layers; adapters act beside that of tokens alone."""

    def __init__(self, source: str, vocab_size: int, width: int) -> None:
        super().__init__(source, vocab_size, width)
        self.weight = replace(self.weight, is_table=True)


class PerLayerEmbedding(Module):
    """ids and embeddings [T, H] -> inputs of all layers [T, layers * P]."""

    def __init__(self, a: Architecture, inputs: PerLayerInputs) -> None:
        self.size, width = inputs.size, a.num_layers * inputs.size
        self.embedding = PerLayerTable("model.embed_tokens_per_layer", inputs.vocabulary, width)
        self.project = ReplicatedLinear(Part("model.per_layer_model_projection.weight", width, a.hidden_size))
        self.norm = GroupNorm("model.per_layer_projection_norm", self.size, a.norm_epsilon)
        self.factor = a.hidden_size**-0.5
        self.table_factor: float = self.size**0.5

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        projected = self.norm(self.project(x_TH, tokens) * self.factor)
        return (projected + self.embedding(tokens) * self.table_factor) * MEAN_FACTOR


class Block(gemma2.Block):
    """Gemma 2's block with experts beside the MLP, then what the layer's own input adds, times a number."""

    def __init__(self, a: Architecture, layer: int) -> None:
        super().__init__(a, layer)
        source, details = f"model.layers.{layer}", a.details_of(Gemma4Details)
        is_wide = layer >= a.num_layers - details.wide_layers
        self.attention = Attention(a, f"{source}.self_attn", layer)
        self.mlp = llama.Mlp(a, f"{source}.mlp", inner=a.intermediate_size * (2 if is_wide else 1))
        self.is_sparse, self.has_input = a.experts is not None, details.per_layer is not None
        if self.is_sparse:
            self.experts = SparseMlp(a, source)
            self.before_sum = llama.norm(a, f"{source}.post_feedforward_layernorm_1")
        if details.per_layer is not None:
            self.mix = PerLayerMix(a, source, layer, details.per_layer.size)
        self.factor = LayerFactor(f"{source}.layer_scalar")

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        x_TH = x_TH + self.after_attention(self.attention(self.attention_norm(x_TH), tokens))
        y_TH = self.mlp(self.mlp_norm(x_TH), tokens)
        if self.is_sparse:
            y_TH = self.before_sum(y_TH) + self.experts(x_TH, tokens)
        x_TH = x_TH + self.after_mlp(y_TH)
        if self.has_input:
            x_TH = x_TH + self.mix(x_TH, tokens)
        return self.factor(x_TH)


class Gemma4(llama.Llama):
    """Llama's ends; layers take in what an embedding of their own makes, where the model has one."""

    def __init__(self, a: Architecture) -> None:
        super().__init__(a, Block)
        inputs = a.details_of(Gemma4Details).per_layer
        self.has_inputs = inputs is not None
        if inputs is not None:
            self.per_layer = PerLayerEmbedding(a, inputs)

    def embed(self, tokens: Tokens) -> Tensor:
        x_TH = super().embed(tokens)
        if self.has_inputs:
            tokens.shared[PER_LAYER] = self.per_layer(x_TH, tokens)
        return x_TH


MODEL = replace(
    gemma2.MODEL,
    describe=describe,
    tree=Gemma4,
    beyond_ascend="heads of two sizes and shared keys and values",
)
