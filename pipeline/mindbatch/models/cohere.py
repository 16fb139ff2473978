"""cohere: Command R and Aya. Attention and MLP read one norm without bias; pairs rotated are neighbours."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.layers.parameters import Module, RmsNorm
from mindbatch.models import llama
from mindbatch.models.architecture import Architecture, Rotary
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.rope import read_rotary

if TYPE_CHECKING:
    from mindbatch.kernels.layer import Operation
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Network

# Of transformers' CohereConfig.
DEFAULTS = {key: value for key, value in llama.DEFAULTS.items() if key != "rms_norm_eps"} | {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `cohere` configuration."""
    reader.needs("use_qk_norm", [False])  # layer norms with weights for each head: no layer computes them
    return describe_family(reader)


def describe_family(reader: ConfigReader, windows: tuple[int, ...] | None = None) -> Architecture:
    """What `cohere` and `cohere2` have in common."""
    reader.needs("rotary_pct", [1.0])
    bias = reader.flag("attention_bias")
    arch = llama.describe_family(
        reader,
        windows=windows,
        qkv_bias=bias,
        output_bias=bias,
        epsilon_key="layer_norm_eps",
        rotary=_read_rotary,
    )
    return replace(arch, logits_factor=reader.number("logit_scale"))


def _read_rotary(reader: ConfigReader, head_dim: int, max_positions: int) -> Rotary:
    return replace(read_rotary(reader, head_dim, max_positions), is_interleaved=True)


def network(layers: Layers) -> Network:
    """Blocks between the token embedding and a last layer norm; the head is scaled as all heads are."""
    return layers.network(layers.embedding, block, partial(layers.layer_norm, "norm", has_bias=False))


def block(layers: Layers, index: int) -> Operation:
    """x + attention(norm(x)) + mlp(norm(x))."""
    name = f"layers.{index}"
    return layers.parallel_block(
        layers.layer_norm(f"{name}.attention_norm", has_bias=False),
        layers.attention(f"{name}.attention", index),
        layers.gated_mlp(f"{name}.mlp"),
    )


class Block(Module):
    """x + attention(norm(x)) + mlp(norm(x))."""

    def __init__(self, a: Architecture, source: str) -> None:
        self.attention_norm = RmsNorm(f"{source}.input_layernorm", a.hidden_size)
        self.attention = llama.Attention(a, f"{source}.self_attn")
        self.mlp = llama.Mlp(a, f"{source}.mlp")


class Model(llama.Model):
    """Llama's ends around blocks with one norm each."""

    def block(self, a: Architecture, index: int) -> Module:
        """The layer of an index."""
        return Block(a, f"model.layers.{index}")


MODEL = replace(llama.MODEL, describe=describe, tree=Model, network=network, defaults=DEFAULTS)
