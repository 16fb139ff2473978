"""Layers of gemma4_text: attention with shared keys and values, experts, and inputs of the layers.

Of arrays: see `models.llama`; P numbers of a layer's own input.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from mindbatch.kernels.operations.dense import activation, columns, group_norm, joined
from mindbatch.kernels.operations.dense import norm as plain_norm
from mindbatch.kernels.operations.experts import router_logits
from mindbatch.kernels.operations.recurrent import gated
from mindbatch.layers.attention import PagedAttention, QueryRotation, Rotation, SharedAttention
from mindbatch.layers.embedding import TokenEmbedding
from mindbatch.layers.experts import Biases, Mixture, Router
from mindbatch.layers.linear import ColumnLinear, ReplicatedLinear, RowLinear
from mindbatch.layers.norm import GroupNorm, UnitNorm
from mindbatch.layers.rank import Module, Rank, Tokens, declared
from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.tensor_spec import Layout, Part

PER_LAYER = "per_layer"


class Attention(Module):
    """Query, key and value with norms of heads, values' without weights; or queries alone."""

    def __init__(self, a: Architecture, source: str, layer: int) -> None:
        sizes, has_cache = a.heads_of(layer), a.has_cache(layer)
        query, keys, hidden = a.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim, a.hidden_size
        self.q_norm = llama.norm(a, f"{source}.q_norm", sizes.head_dim)
        parts = [Part(f"{source}.q_proj.weight", query, hidden, unit=sizes.head_dim)]
        self.has_cache, self.has_values = has_cache, not (a.shares_values and a.windows[layer] == 0)
        self.rotate: Module = Rotation(a, layer) if has_cache else QueryRotation(a, layer)
        self.attend: Any = PagedAttention(a, layer) if has_cache else SharedAttention(a, layer)
        if has_cache:
            key, value = (
                Part(f"{source}.{which}_proj.weight", keys, hidden, unit=sizes.head_dim, is_shared=True)
                for which in "kv"
            )
            parts.append(key)
            self.k_norm, self.v_norm = (
                llama.norm(a, f"{source}.k_norm", sizes.head_dim),
                UnitNorm(sizes.head_dim),
            )
            if self.has_values:
                self.value = ColumnLinear(value, bias=a.qkv_bias)
        self.qk = ColumnLinear(*parts, bias=a.qkv_bias)
        self.epsilon = a.norm_epsilon
        self.output = RowLinear(Part(f"{source}.o_proj.weight", hidden, query), bias=a.output_bias)

    def forward(self, x_TH: Any, tokens: Tokens) -> Any:
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

    def forward(self, x_TH: Any) -> Any:
        unit_TH = plain_norm(x_TH, self.norm.weight, None, epsilon=self.epsilon, centred=False)
        return router_logits(unit_TH, self.weight)


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

    def forward(self, x_TH: Any, tokens: Tokens) -> Any:
        return self.after(self.routed(self.before(x_TH), self.router(x_TH)))


class LayerFactor(Module):
    """x times one number of the checkpoint."""

    def __init__(self, source: str) -> None:
        self.weight = declared(Part(source, 1))

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        self.factor = float(rank.kernels.floats(self.weight)[0])

    def forward(self, x: Any) -> Any:
        return x * self.factor


class PerLayerMix(Module):
    """x [T, H] -> what a layer adds to it: its own input [T, P] times act(gate(x)), and a matrix of that."""

    def __init__(self, a: Architecture, source: str, layer: int) -> None:
        assert a.per_layer is not None
        self.size, self.first, self.activation = a.per_layer.size, layer * a.per_layer.size, a.activation
        self.gate = ReplicatedLinear(Part(f"{source}.per_layer_input_gate.weight", self.size, a.hidden_size))
        self.project = ReplicatedLinear(
            Part(f"{source}.per_layer_projection.weight", a.hidden_size, self.size)
        )
        self.norm = llama.norm(a, f"{source}.post_per_layer_input_norm")

    def forward(self, x_TH: Any, tokens: Tokens) -> Any:
        active_TP = activation(self.gate(x_TH, tokens), kind=self.activation, gated=False)
        inputs = tokens.made[PER_LAYER]  # [T, layers * P]
        settings = {"kind": "identity", "width": self.size, "first": self.first, "epsilon": 0.0}
        return self.norm(self.project(gated(active_TP, inputs, None, **settings), tokens))


class PerLayerTable(TokenEmbedding):
    """The embedding that makes inputs of layers; adapters act beside that of tokens alone."""

    def __init__(self, source: str, vocab_size: int, width: int) -> None:
        super().__init__(source, vocab_size, width)
        self.weight = replace(self.weight, is_table=True)


class PerLayerEmbedding(Module):
    """ids and embeddings [T, H] -> inputs of all layers [T, layers * P]."""

    def __init__(self, a: Architecture) -> None:
        assert a.per_layer is not None
        self.size, width = a.per_layer.size, a.num_layers * a.per_layer.size
        self.embedding = PerLayerTable("model.embed_tokens_per_layer", a.per_layer.vocabulary, width)
        self.project = ReplicatedLinear(Part("model.per_layer_model_projection.weight", width, a.hidden_size))
        self.norm = GroupNorm("model.per_layer_projection_norm", self.size, a.norm_epsilon)
        self.factor = a.hidden_size**-0.5

    def forward(self, x_TH: Any, tokens: Tokens) -> Any:
        projected = self.norm(self.project(x_TH, tokens) * self.factor)
        return (projected + self.embedding(tokens) * self.size**0.5) * 0.5**0.5
