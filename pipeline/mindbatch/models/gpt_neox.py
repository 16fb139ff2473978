"""gpt_neox (GPT-NeoX, Pythia): attention and MLP side by side, fused heads, a part of each head rotated."""

from collections.abc import Sequence
from typing import Any

from mindbatch.layers.norm import LayerNorm
from mindbatch.layers.rank import Module, Tokens
from mindbatch.models import llama
from mindbatch.models.architecture import Architecture, Rotary
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.llama import ACTIVATIONS
from mindbatch.models.model_type import ModelType
from mindbatch.models.rope import plain_frequencies, rotary_width
from mindbatch.models.tensor_spec import (
    Part,
    interleaved,
)


def describe(reader: ConfigReader) -> Architecture:
    hidden, layers = reader.positive("hidden_size"), reader.positive("num_hidden_layers")
    heads = reader.positive("num_attention_heads")
    head_dim = whole_heads(reader, "hidden_size", hidden, heads, "num_attention_heads")
    base = reader.number("rotary_emb_base")
    width = rotary_width(reader, head_dim, "rotary_pct")
    reader.needs("rope_scaling", [None])
    reader.needs("tie_word_embeddings", [False])
    bias = reader.flag("attention_bias")
    return Architecture(
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        head_dim=head_dim,
        intermediate_size=reader.positive("intermediate_size"),
        max_positions=reader.positive("max_position_embeddings"),
        norm_epsilon=reader.number("layer_norm_eps"),
        activation=reader.choice("hidden_act", ACTIVATIONS | {"gelu_fast": "gelu_tanh"}),
        tied=False,
        rotary=Rotary(tuple(map(float, plain_frequencies(base, width)))),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        is_parallel=reader.flag("use_parallel_residual"),
    )


def whole_heads(reader: ConfigReader, key: str, hidden: int, heads: int, heads_key: str) -> int:
    """Numbers of a head; a fault where the width, of `key`, is not divided evenly."""
    if hidden % heads:
        reader.fault(key, f"must be divisible by {heads_key}={heads}")
    return max(1, hidden // heads)


class Attention(llama.Attention):
    """Query, key and value by one matrix, in which the heads' three take turns; the output by another."""

    def __init__(self, a: Architecture, source: str, layer: int) -> None:
        super().__init__(a, source, layer, "dense")

    def projections(self, a: Architecture, source: str) -> tuple[Part, ...]:
        fused = f"{source}.query_key_value.weight"
        return interleaved(fused, (a.head_dim,) * 3, a.heads, a.hidden_size, a.head_dim)


class Block(llama.Block):
    """x + attention(norm(x)), then x + mlp(norm(x)), as Megatron names them.

    source: of the layer; norms: names below it.
    """

    def __init__(
        self,
        a: Architecture,
        source: str,
        attention: Module,
        norms: Sequence[str] = ("input_layernorm", "post_attention_layernorm"),
    ) -> None:
        self.attention_norm = LayerNorm(f"{source}.{norms[0]}", a.hidden_size, a.norm_epsilon)
        self.attention = attention
        self.shares_norm, self.factor = len(norms) == 1, a.normed_factor
        if not self.shares_norm:
            self.mlp_norm = LayerNorm(f"{source}.{norms[1]}", a.hidden_size, a.norm_epsilon)
        self.mlp = llama.Mlp(a, f"{source}.mlp", ["dense_h_to_4h"], "dense_4h_to_h")


class ParallelBlock(Block):
    """x + (attention(norm(x)) + mlp(norm(x))), of one norm or two."""

    def forward(self, x_TH: Any, tokens: Tokens) -> Any:
        normed_TH = self.attention_norm(x_TH)
        attended_TH = self.attention(normed_TH, tokens)
        if not self.shares_norm:
            normed_TH = self.mlp_norm(x_TH)
        return x_TH + (attended_TH + self.mlp(normed_TH, tokens))


class NormedSumBlock(Block):
    """f * n + attention(n) for n = norm(x), then the same with the MLP."""

    def forward(self, x_TH: Any, tokens: Tokens) -> Any:
        normed_TH = self.attention_norm(x_TH)
        x_TH = self.attention(normed_TH, tokens) + normed_TH * self.factor
        normed_TH = self.mlp_norm(x_TH)
        return self.mlp(normed_TH, tokens) + normed_TH * self.factor


def block(a: Architecture, layer: int, layers: str = "gpt_neox.layers", name: str = "attention") -> Block:
    """A layer of the kind that the configuration asks for, by the names of layers and their attention."""
    kind = ParallelBlock if a.is_parallel else NormedSumBlock if a.adds_normed else Block
    source = f"{layers}.{layer}"
    return kind(a, source, Attention(a, f"{source}.{name}", layer))


MODEL = ModelType(
    describe,
    llama.with_blocks(block, LayerNorm, ("gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out")),
    prefix="gpt_neox.",
    unused_tensors=("*.attention.bias", "*.attention.masked_bias", "*rotary_emb.inv_freq"),
    newer_names={"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"},
)
