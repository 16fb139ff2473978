"""A model of MindFormers as its config.json describes it: sizes, its tensors, and what its class is given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CORRECTION_BIAS = "e_score_correction_bias"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class GroupedAttention:
    """Query heads that share key/value heads.

    qkv_bias: on the three projections. qk_norm: an RMS norm of each query and key head. output_bias: on the
    projection of what the heads give. fused_kv: the checkpoint has each head's key and value in one tensor,
    [kv_heads x (key, value), hidden].
    """

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    qk_norm: bool = False
    output_bias: bool = False
    fused_kv: bool = False


@dataclass(frozen=True)
class LatentAttention:
    """Heads over one compressed vector a token, and a rotated key that they share (DeepSeek-V2, 2024).

    key_dim and value_dim: of a head without the rotated part, rotary_dim.
    """

    heads: int
    query_rank: int
    latent_rank: int
    key_dim: int
    rotary_dim: int
    value_dim: int

    @property
    def cached_dim(self) -> int:
        """Numbers of a token that the cache holds: the compressed vector and the rotated key."""
        return self.latent_rank + self.rotary_dim


@dataclass(frozen=True)
class Experts:
    """Gated MLPs of which each token takes some.

    first: the first layer that has them. shared_width: of those that every token takes; 0 for none.
    correction_bias: the router's choice is corrected by a bias for each expert.
    """

    count: int
    width: int
    first: int = 0
    shared_width: int = 0
    correction_bias: bool = False


@dataclass(frozen=True)
class Description:
    """Sizes of a decoder.

    max_positions: that its table of rotations holds.
    fused_mlp: the checkpoint has gate and up in one tensor.
    sandwich_norms: norms after attention and MLP, too.
    next_token_layers: layers behind the last one that predict further tokens; they are not run.
    down_bias: on the last projection of the MLP.
    own_names: of tensors that are not called as Llama's are, as (part of Llama's name, part of its own).
    layers_key: of config.json, which says the number of layers.
    arguments: of MindFormers' configuration class, but for the types to compute in.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    intermediate_size: int
    max_positions: int
    attention: GroupedAttention | LatentAttention
    arguments: Mapping[str, Any]
    experts: Experts | None = None
    tied: bool = False
    fused_mlp: bool = False
    sandwich_norms: bool = False
    next_token_layers: int = 0
    down_bias: bool = False
    own_names: tuple[tuple[str, str], ...] = ()
    layers_key: str = "num_hidden_layers"

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The tensors of its checkpoint, by the names that they have there."""
        return {self.own_name(name): shape for name, shape in tensor_shapes(self).items()}

    def own_name(self, name: str) -> str:
        """What the checkpoint calls a tensor that is called so in Llama's."""
        for llama, own in self.own_names:
            name = name.replace(llama, own)
        return name

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        """Patterns of the names that its checkpoint may hold though nothing reads them."""
        further = range(self.num_layers, self.num_layers + self.next_token_layers)
        return ("*rotary_emb.inv_freq", *self.tied_tensors, *(f"model.layers.{layer}.*" for layer in further))

    @property
    def tied_tensors(self) -> Mapping[str, str]:
        """The tensor of the token embedding by the head's name, where they are one."""
        return {HEAD: EMBEDDING} if self.tied else {}

    @property
    def num_parameters(self) -> int:
        return sum(map(math.prod, self.shapes.values()))


Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(model: Description) -> Shapes:
    """Shapes of all tensors that the model needs, by the names that transformers gives those of Llama."""
    hidden, vocabulary = model.hidden_size, (model.vocab_size, model.hidden_size)
    shapes: Shapes = {EMBEDDING: vocabulary, "model.norm.weight": (hidden,)}
    if not model.tied:
        shapes[HEAD] = vocabulary
    norms = ["input_layernorm", "post_attention_layernorm"]
    if model.sandwich_norms:
        norms += ["post_self_attn_layernorm", "post_mlp_layernorm"]
    for index in range(model.num_layers):
        layer = f"model.layers.{index}"
        shapes |= {f"{layer}.{norm}.weight": (hidden,) for norm in norms}
        shapes |= _attention_shapes(f"{layer}.self_attn", model.attention, hidden)
        shapes |= _mlp_shapes(f"{layer}.mlp", model, index)
    return shapes


def _attention_shapes(name: str, attention: GroupedAttention | LatentAttention, hidden: int) -> Shapes:
    if isinstance(attention, LatentAttention):
        return _latent_shapes(name, attention, hidden)
    size = attention.head_dim
    keys = attention.kv_heads * size
    widths = {"q": attention.heads * size} | (
        {"kv": 2 * keys} if attention.fused_kv else {"k": keys, "v": keys}
    )
    shapes: Shapes = {f"{name}.{which}_proj.weight": (width, hidden) for which, width in widths.items()}
    shapes[f"{name}.o_proj.weight"] = (hidden, attention.heads * size)
    if attention.output_bias:
        shapes[f"{name}.o_proj.bias"] = (hidden,)
    if attention.qkv_bias:
        shapes |= {f"{name}.{which}_proj.bias": (width,) for which, width in widths.items()}
    if attention.qk_norm:
        shapes |= {f"{name}.{which}_norm.weight": (size,) for which in "qk"}
    return shapes


def _latent_shapes(name: str, attention: LatentAttention, hidden: int) -> Shapes:
    heads, rank, latent = attention.heads, attention.query_rank, attention.latent_rank
    return {
        f"{name}.q_a_proj.weight": (rank, hidden),
        f"{name}.q_a_layernorm.weight": (rank,),
        f"{name}.q_b_proj.weight": (heads * (attention.key_dim + attention.rotary_dim), rank),
        f"{name}.kv_a_proj_with_mqa.weight": (attention.cached_dim, hidden),
        f"{name}.kv_a_layernorm.weight": (latent,),
        f"{name}.kv_b_proj.weight": (heads * (attention.key_dim + attention.value_dim), latent),
        f"{name}.o_proj.weight": (hidden, heads * attention.value_dim),
    }


def _mlp_shapes(name: str, model: Description, layer: int) -> Shapes:
    experts = model.experts
    if experts is None or layer < experts.first:
        shapes = _gated_shapes(name, model.hidden_size, model.intermediate_size, model.fused_mlp)
        return shapes | ({f"{name}.down_proj.bias": (model.hidden_size,)} if model.down_bias else {})
    shapes = {f"{name}.gate.weight": (experts.count, model.hidden_size)}
    if experts.correction_bias:
        shapes[f"{name}.gate.{CORRECTION_BIAS}"] = (experts.count,)
    for index in range(experts.count):
        shapes |= _gated_shapes(f"{name}.experts.{index}", model.hidden_size, experts.width)
    if experts.shared_width:
        shapes |= _gated_shapes(f"{name}.shared_experts", model.hidden_size, experts.shared_width)
    return shapes


def _gated_shapes(name: str, hidden: int, width: int, fused: bool = False) -> Shapes:
    shapes: Shapes = {f"{name}.down_proj.weight": (hidden, width)}
    if fused:
        return shapes | {f"{name}.gate_up_proj.weight": (2 * width, hidden)}
    return shapes | {f"{name}.{which}_proj.weight": (width, hidden) for which in ("gate", "up")}
