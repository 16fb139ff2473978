"""olmo2: Llama's shape with norms after attention and MLP, not before; query and key are normed whole."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.tensor_spec import Part, Sharding, TensorSpec, norm

if TYPE_CHECKING:
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Block, Network

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


def block(layers: Layers, index: int) -> Block:
    """x + norm(attention(x)), then x + norm(mlp(x))."""
    name = f"layers.{index}"
    return layers.block(
        layers.residual_sum(index),
        layers.attention(f"{name}.attention", index, layers.plain_rms_norm(f"{name}.attention.after_norm")),
        layers.residual_sum(),
        layers.gated_mlp(f"{name}.mlp", layers.plain_rms_norm(f"{name}.mlp.after_norm")),
    )


def tensors(arch: Architecture) -> list[TensorSpec]:
    """Llama's parameters with other norms."""
    specs = [
        spec
        for spec in llama.tensors(arch)
        if not spec.name.endswith(("attention_norm.weight", "mlp_norm.weight"))
    ]
    for layer in range(arch.num_layers):
        source, name = f"model.layers.{layer}", f"layers.{layer}"
        specs += norm(f"{name}.attention.after_norm", f"{source}.post_attention_layernorm", arch.hidden_size)
        specs += norm(f"{name}.mlp.after_norm", f"{source}.post_feedforward_layernorm", arch.hidden_size)
        specs += [
            _head_norm(
                arch, f"{name}.attention.{which}_norm.weight", f"{source}.self_attn.{which}_norm.weight"
            )
            for which in "qk"
        ]
    return specs


def _head_norm(arch: Architecture, name: str, source: str) -> TensorSpec:
    """The part of a norm over all heads that a rank's heads have."""
    is_key = name.endswith("k_norm.weight")
    width = (arch.kv_heads if is_key else arch.heads) * arch.head_dim
    return TensorSpec(name, (Part(source, width, unit=arch.head_dim, is_shared=is_key),), Sharding.OUTPUTS)


MODEL = replace(llama.MODEL, describe=describe, tensors=tensors, network=network, defaults=DEFAULTS)
