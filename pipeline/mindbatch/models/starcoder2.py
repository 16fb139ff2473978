"""starcoder2: Llama's attention with windows, between layer norms, and a plain MLP; biases on everything."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.layers.parameters import LayerNorm, Module
from mindbatch.models import gpt2, llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader

if TYPE_CHECKING:
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Network

# Of transformers' Starcoder2Config.
DEFAULTS = {key: value for key, value in llama.DEFAULTS.items() if key != "rms_norm_eps"} | {
    "vocab_size": 49152,
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096,
    "norm_epsilon": 1e-5,
    "use_bias": True,
    "tie_word_embeddings": True,
}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `starcoder2` configuration."""
    reader.ignore(["residual_dropout"])
    reader.needs("mlp_type", ["default"])
    reader.needs("norm_type", ["layer_norm"])
    window = 0 if reader.raw("sliding_window") is None else reader.positive("sliding_window")
    windows = (window,) * reader.positive("num_hidden_layers")
    bias = reader.flag("use_bias")
    return llama.describe_family(
        reader, windows=windows, qkv_bias=bias, output_bias=bias, mlp_bias=bias, epsilon_key="norm_epsilon"
    )


def network(layers: Layers) -> Network:
    """GPT-2's blocks between the token embedding and a last layer norm."""
    return layers.network(layers.embedding, gpt2.block, partial(layers.layer_norm, "norm"))


class Block(Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, a: Architecture, source: str) -> None:
        self.attention_norm = LayerNorm(f"{source}.input_layernorm", a.hidden_size)
        self.attention = llama.Attention(a, f"{source}.self_attn")
        self.mlp_norm = LayerNorm(f"{source}.post_attention_layernorm", a.hidden_size)
        self.mlp = llama.Mlp(a, f"{source}.mlp", ["c_fc"], "c_proj")


class Model(llama.Model):
    """Llama's with layer norms and a plain MLP."""

    def __init__(self, a: Architecture) -> None:
        super().__init__(a)
        self.norm = LayerNorm("model.norm", a.hidden_size)

    def block(self, a: Architecture, index: int) -> Module:
        """The layer of an index."""
        return Block(a, f"model.layers.{index}")


MODEL = replace(llama.MODEL, describe=describe, tree=Model, network=network, defaults=DEFAULTS)
