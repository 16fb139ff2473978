"""glm4: GLM-4 of 2025. As glm, and what attention and MLP add is normed before."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.layers.parameters import Module, RmsNorm
from mindbatch.models import glm, llama
from mindbatch.models.architecture import Architecture

if TYPE_CHECKING:
    from mindbatch.kernels.layer import Operation
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Network


def network(layers: Layers) -> Network:
    """Blocks between the token embedding and a last RMS norm."""
    return layers.network(layers.embedding, block, partial(layers.rms_norm, "norm"))


def block(layers: Layers, index: int) -> Operation:
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""
    name = f"layers.{index}"
    return layers.block(
        layers.rms_norm(f"{name}.attention_norm"),
        layers.attention(f"{name}.attention", index, layers.plain_rms_norm(f"{name}.attention.after_norm")),
        layers.rms_norm(f"{name}.mlp_norm"),
        layers.gated_mlp(f"{name}.mlp", layers.plain_rms_norm(f"{name}.mlp.after_norm")),
    )


class Model(llama.Model):
    """Llama's ends around glm's blocks, which norm what attention and MLP add, too."""

    def block(self, a: Architecture, index: int) -> Module:
        """The layer of an index."""
        block, source = glm.Block(a, index), f"model.layers.{index}"
        block.attention.after_norm = RmsNorm(f"{source}.post_self_attn_layernorm", a.hidden_size)
        block.mlp.after_norm = RmsNorm(f"{source}.post_mlp_layernorm", a.hidden_size)
        return block


MODEL = replace(glm.MODEL, tree=Model, network=network)
