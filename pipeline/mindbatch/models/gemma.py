"""gemma: the first Gemma. Llama's shape with scaled embeddings, norms of 1 + weight and a GeGLU MLP."""

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

# Of transformers' GemmaConfig.
DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `gemma` configuration."""
    reader.ignore(["hidden_activation"])  # transformers computes with hidden_act
    bias = reader.flag("attention_bias")
    arch = llama.describe_family(reader, qkv_bias=bias, output_bias=bias)
    # Files of the first releases say "gelu" and mean the approximation that the models were trained with.
    return replace(arch, activation="gelu_tanh") if arch.activation == "gelu" else arch


def network(layers: Layers) -> Network:
    """Blocks between a token embedding times sqrt(hidden_size), which the head is not, and a last norm."""
    embedding = partial(layers.embedding, factor=layers.arch.hidden_size**0.5)
    return layers.network(embedding, block, partial(layers.rms_norm, "norm", offset=1.0))


def block(layers: Layers, index: int) -> Operation:
    """x + attention(norm(x)), then x + mlp(norm(x))."""
    name = f"layers.{index}"
    return layers.block(
        layers.rms_norm(f"{name}.attention_norm", offset=1.0),
        layers.attention(f"{name}.attention", index),
        layers.rms_norm(f"{name}.mlp_norm", offset=1.0),
        layers.gated_mlp(f"{name}.mlp"),
    )


MODEL = replace(llama.MODEL, describe=describe, network=network, defaults=DEFAULTS)
