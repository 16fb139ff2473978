"""cohere: Command R and Aya. Attention and MLP read one norm without bias; pairs rotated are neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mindbatch.layers.norm import PlainLayerNorm
from mindbatch.layers.rank import Module, Tokens
from mindbatch.models import llama
from mindbatch.models.architecture import Architecture, Rotary
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.rope import read_rotary


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `cohere` configuration."""
    reader.needs("use_qk_norm", [False])  # layer norms with weights for each head: no layer computes them
    return describe_family(reader)


def describe_family(reader: ConfigReader, windows: tuple[int, ...] = ()) -> Architecture:
    """Reads what `cohere` and `cohere2` have in common."""
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


class Block(Module):
    """x + (attention(norm(x)) + mlp(norm(x)))."""

    def __init__(self, a: Architecture, layer: int) -> None:
        source = f"model.layers.{layer}"
        self.attention_norm = PlainLayerNorm(f"{source}.input_layernorm", a.hidden_size, a.norm_epsilon)
        self.attention = llama.Attention(a, f"{source}.self_attn", layer)
        self.mlp = llama.Mlp(a, f"{source}.mlp")

    def forward(self, x_TH: Any, tokens: Tokens) -> Any:
        normed_TH = self.attention_norm(x_TH)
        return x_TH + (self.attention(normed_TH, tokens) + self.mlp(normed_TH, tokens))


MODEL = replace(
    llama.MODEL,
    describe=describe,
    tree=llama.with_blocks(Block, PlainLayerNorm),
)
