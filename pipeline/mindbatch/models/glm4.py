"""glm4: GLM-4 of 2025. As glm, and what attention and MLP add is normed before."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.models import glm
from mindbatch.models.architecture import Architecture
from mindbatch.models.tensor_spec import TensorSpec, norm

if TYPE_CHECKING:
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Block, Network


def network(layers: Layers) -> Network:
    """Blocks between the token embedding and a last RMS norm."""
    return layers.network(layers.embedding, block, partial(layers.rms_norm, "norm"))


def block(layers: Layers, index: int) -> Block:
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""
    name = f"layers.{index}"
    return layers.block(
        layers.rms_norm(f"{name}.attention_norm"),
        layers.attention(f"{name}.attention", index, layers.plain_rms_norm(f"{name}.attention.after_norm")),
        layers.rms_norm(f"{name}.mlp_norm"),
        layers.gated_mlp(f"{name}.mlp", layers.plain_rms_norm(f"{name}.mlp.after_norm")),
    )


def tensors(arch: Architecture) -> list[TensorSpec]:
    """Those of glm, and two norms more in each layer."""
    specs = glm.tensors(arch)
    for layer in range(arch.num_layers):
        source, name = f"model.layers.{layer}", f"layers.{layer}"
        specs += norm(f"{name}.attention.after_norm", f"{source}.post_self_attn_layernorm", arch.hidden_size)
        specs += norm(f"{name}.mlp.after_norm", f"{source}.post_mlp_layernorm", arch.hidden_size)
    return specs


MODEL = replace(glm.MODEL, tensors=tensors, network=network)
