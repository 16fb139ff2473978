"""gemma4_text: Gemma 3's layers with heads of two sizes, shared keys and values, and an input of each layer.

Also the text part of gemma4, whose images and sounds are not read. Of arrays: see `models.llama`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mindbatch.layers.rank import Tokens
from mindbatch.models import gemma2, llama
from mindbatch.models.architecture import Architecture, Experts, HeadSizes, PerLayerInputs, Rotary
from mindbatch.models.config_forms import UNUSED
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.experts import read_count, read_routing
from mindbatch.models.gemma4_layers import (
    PER_LAYER,
    Attention,
    LayerFactor,
    PerLayerEmbedding,
    PerLayerMix,
    SparseMlp,
)
from mindbatch.models.layer_kinds import FULL, SLIDING, kinds_of_layers
from mindbatch.models.rope import plain_frequencies

WINDOWS_BUT_EVERY = 6


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
    local = Rotary(tuple(map(float, plain_frequencies(reader.number("rope_local_base_freq"), arch.head_dim))))
    return replace(
        arch,
        windows=tuple(window if kind == SLIDING else 0 for kind in kinds),
        layer_rotaries=tuple(local if kind == SLIDING else arch.rotary for kind in kinds),
        layer_heads=heads,
        attention_scales=(1.0,) * arch.num_layers,
        cache_layers=read_cache_layers(reader, kinds, shares),
        wide_layers=shares if reader.flag("use_double_wide_mlp") else 0,
        shares_values=reader.flag("attention_k_eq_v"),
        per_layer=read_per_layer(reader, arch.vocab_size),
        experts=read_experts(reader, arch.num_layers) if reader.flag("enable_moe_block") else None,
        embedding_factor=arch.hidden_size**0.5,
        logits_cap=gemma2.read_cap(reader, "final_logit_softcapping"),
    )


def read_kinds(reader: ConfigReader, layers: int) -> Sequence[str]:
    """Kind of each layer; the last one has no window."""
    usual = [SLIDING if (layer + 1) % WINDOWS_BUT_EVERY else FULL for layer in range(layers - 1)]
    kinds = kinds_of_layers(reader, (FULL, SLIDING), [*usual, FULL])
    if kinds[-1] != FULL:
        reader.fault("layer_types", f"must end with {FULL}")
    return kinds


def read_heads(reader: ConfigReader, arch: Architecture, kinds: Sequence[str]) -> tuple[HeadSizes, ...]:
    """Heads of each layer: those without a window have sizes of their own."""
    config = reader.value("per_layer_config")
    if config is not None:
        reader.ignore(["global_head_dim", "num_global_key_value_heads"])
        by_layer = config if isinstance(config, Mapping) else {}
        if by_layer is not config or by_layer.keys() - set(map(str, range(len(kinds)))):
            reader.fault("per_layer_config", "must have settings by the number of a layer, as text")
        return tuple(_own_heads(reader, arch, by_layer.get(str(layer), {})) for layer in range(len(kinds)))
    own = reader.flag("attention_k_eq_v") and reader.raw("num_global_key_value_heads") is not None
    kv_heads = reader.positive("num_global_key_value_heads") if own else arch.kv_heads
    reader.ignore(["num_global_key_value_heads"])
    usual, whole = (
        HeadSizes(arch.kv_heads, arch.head_dim),
        HeadSizes(kv_heads, reader.positive("global_head_dim")),
    )
    _check_heads(reader, "num_global_key_value_heads", arch, whole)
    return tuple(usual if kind == SLIDING else whole for kind in kinds)


def _own_heads(reader: ConfigReader, arch: Architecture, settings: Any) -> HeadSizes:
    inner = reader.within("per_layer_config", settings)
    sizes = HeadSizes(
        inner.positive("num_key_value_heads", arch.kv_heads), inner.positive("head_dim", arch.head_dim)
    )
    _check_heads(reader, "per_layer_config", arch, sizes)
    return sizes


def _check_heads(reader: ConfigReader, key: str, arch: Architecture, sizes: HeadSizes) -> None:
    if arch.heads % sizes.kv_heads:
        reader.fault(key, f"key/value heads must divide num_attention_heads={arch.heads}")
    if sizes.head_dim % 2:
        reader.fault(key, "heads must have an even size for rotary positions")


def read_cache_layers(reader: ConfigReader, kinds: Sequence[str], shares: int) -> tuple[int, ...]:
    """Whose keys and values each layer sees: the last ones those of the last of their kind before them."""
    first = len(kinds) - shares
    latest = {kind: layer for layer, kind in enumerate(kinds[:first])}
    if {*kinds[first:]} - latest.keys():
        reader.fault("num_kv_shared_layers", "leaves layers without one of their kind to share with")
        return tuple(range(len(kinds)))
    return tuple(layer if layer < first else latest[kind] for layer, kind in enumerate(kinds))


def read_per_layer(reader: ConfigReader, vocabulary: int) -> PerLayerInputs | None:
    """Inputs of the layers, where the model has any: with a size of 0 it has none."""
    size = reader.raw("hidden_size_per_layer_input")
    rows = reader.positive("vocab_size_per_layer_input")
    if size in (0, None):
        return None
    if rows < vocabulary:
        reader.fault("vocab_size_per_layer_input", f"must be at least vocab_size={vocabulary}")
    return PerLayerInputs(reader.positive("hidden_size_per_layer_input"), rows)


def read_experts(reader: ConfigReader, layers: int) -> Experts:
    sparse = tuple(range(layers))
    routing = read_routing(reader, "num_experts", "top_k_experts", is_normalised=True, layers=sparse)
    return Experts(routing, reader.positive("moe_intermediate_size"), sparse, is_fused=True)


def read_proportional(reader: ConfigReader, head_dim: int, max_positions: int) -> Rotary:
    """The rotary embedding of layers without a window: the frequencies of a whole head, the later ones 0."""
    scaling = reader.value("rope_scaling")
    if scaling != {"rope_type": "proportional"}:
        reader.fault("rope_scaling", "must have rope_type proportional, as Gemma 4 has")
    share = reader.number("partial_rotary_factor")
    if share > 1:
        reader.fault("partial_rotary_factor", "must be at most 1")
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
        reader.fault("per_layer_config", "must have one head_dim, of the layers without a window")
        return head_dim
    return int(size)


class Block(gemma2.Block):
    """Gemma 2's block with experts beside the MLP, then what the layer's own input adds, times a number."""

    def __init__(self, a: Architecture, layer: int) -> None:
        super().__init__(a, layer)
        source = f"model.layers.{layer}"
        is_wide = layer >= a.num_layers - a.wide_layers
        self.attention = Attention(a, f"{source}.self_attn", layer)
        self.mlp = llama.Mlp(a, f"{source}.mlp", inner=a.intermediate_size * (2 if is_wide else 1))
        self.is_sparse, self.has_input = a.experts is not None, a.per_layer is not None
        if self.is_sparse:
            self.experts = SparseMlp(a, source)
            self.before_sum = llama.norm(a, f"{source}.post_feedforward_layernorm_1")
        if self.has_input:
            self.mix = PerLayerMix(a, source, layer)
        self.factor = LayerFactor(f"{source}.layer_scalar")

    def forward(self, x_TH: Any, tokens: Tokens) -> Any:
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
        if a.per_layer is not None:
            self.per_layer = PerLayerEmbedding(a)

    def embed(self, tokens: Tokens) -> Any:
        x_TH = super().embed(tokens)
        if self.arch.per_layer is not None:
            tokens.made[PER_LAYER] = self.per_layer(x_TH, tokens)
        return x_TH


MODEL = replace(
    gemma2.MODEL,
    describe=describe,
    tree=Gemma4,
    unused_tensors=(*gemma2.MODEL.unused_tensors, *UNUSED),
    beyond_ascend="heads of two sizes and shared keys and values",
)
