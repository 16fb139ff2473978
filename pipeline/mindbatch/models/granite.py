"""granite: Llama's shape with factors on embeddings, attention, what each layer adds, and logits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader

if TYPE_CHECKING:
    from mindbatch.kernels.layer import Operation
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Network

# Of transformers' GraniteConfig.
FACTORS = ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier")
DEFAULTS = llama.DEFAULTS | dict.fromkeys(FACTORS, 1.0)


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `granite` configuration."""
    arch = llama.describe(reader)
    for key in FACTORS:
        if reader.raw(key) is None:
            reader.fault(key, "must be a number above 0")
    return replace(
        arch,
        attention_scales=(reader.number("attention_multiplier"),) * arch.num_layers,
        embedding_factor=reader.number("embedding_multiplier"),
        residual_factor=reader.number("residual_multiplier"),
        logits_factor=1 / reader.number("logits_scaling"),
    )


def network(layers: Layers) -> Network:
    """Blocks between a scaled token embedding and a last RMS norm; the head is scaled as all heads are."""
    embedding = partial(layers.embedding, factor=layers.arch.embedding_factor)
    return layers.network(embedding, block, partial(layers.rms_norm, "norm"))


def block(layers: Layers, index: int) -> Operation:
    """x + r * attention(norm(x)), then x + r * mlp(norm(x))."""
    name, factor = f"layers.{index}", layers.arch.residual_factor
    return layers.block(
        layers.rms_norm(f"{name}.attention_norm"),
        layers.attention(f"{name}.attention", index, layers.scaled(factor)),
        layers.rms_norm(f"{name}.mlp_norm"),
        layers.gated_mlp(f"{name}.mlp", layers.scaled(factor)),
    )


MODEL = replace(llama.MODEL, describe=describe, network=network, defaults=DEFAULTS)
