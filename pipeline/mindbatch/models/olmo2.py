"""olmo2: Llama's shape with norms after attention and MLP, not before; query and key are normed whole."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.layers.parameters import AllHeadsNorm, Module, RmsNorm
from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader

if TYPE_CHECKING:
    from mindbatch.kernels.layer import Operation
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Network

# Of transformers' Olmo2Config.
DEFAULTS = llama.DEFAULTS | {"vocab_size": 50304, "rms_norm_eps": 1e-5}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of an `olmo2` configuration."""
    bias = reader.flag("attention_bias")
    arch = llama.describe_family(reader, qkv_bias=bias, output_bias=bias)
    return replace(arch, norms_all_heads=True)


def network(layers: Layers) -> Network:
    """Blocks between the token embedding and a last RMS norm."""
    return layers.network(layers.embedding, block, partial(layers.rms_norm, "norm"))


def block(layers: Layers, index: int) -> Operation:
    """x + norm(attention(x)), then x + norm(mlp(x))."""
    name = f"layers.{index}"
    return layers.block(
        layers.residual_sum(index),
        layers.attention(f"{name}.attention", index, layers.plain_rms_norm(f"{name}.attention.after_norm")),
        layers.residual_sum(),
        layers.gated_mlp(f"{name}.mlp", layers.plain_rms_norm(f"{name}.mlp.after_norm")),
    )


class Attention(llama.Attention):
    """Llama's with norms over all heads, and one of what it adds."""

    def __init__(self, a: Architecture, source: str) -> None:
        super().__init__(a, f"{source}.self_attn")
        self.q_norm = AllHeadsNorm(f"{source}.self_attn.q_norm", a.heads, a.head_dim)
        self.k_norm = AllHeadsNorm(f"{source}.self_attn.k_norm", a.kv_heads, a.head_dim, is_shared=True)
        self.after_norm = RmsNorm(f"{source}.post_attention_layernorm", a.hidden_size)


class Mlp(llama.Mlp):
    """Llama's with a norm of what it adds."""

    def __init__(self, a: Architecture, source: str) -> None:
        super().__init__(a, f"{source}.mlp")
        self.after_norm = RmsNorm(f"{source}.post_feedforward_layernorm", a.hidden_size)


class Block(Module):
    """x + norm(attention(x)), then x + norm(mlp(x))."""

    def __init__(self, a: Architecture, source: str) -> None:
        self.attention = Attention(a, source)
        self.mlp = Mlp(a, source)


class Model(llama.Model):
    """Llama's ends around other blocks."""

    def block(self, a: Architecture, index: int) -> Module:
        """The layer of an index."""
        return Block(a, f"model.layers.{index}")


MODEL = replace(llama.MODEL, describe=describe, tree=Model, network=network, defaults=DEFAULTS)
