"""gpt_neox (GPT-NeoX, Pythia): attention and MLP side by side, fused heads, a part of each head rotated."""

from dataclasses import dataclass, replace

from mindbatch.architecture.architecture import Architecture, TypeDetails
from mindbatch.architecture.tensor_spec import Part, interleaved
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import plain_rotary, rotary_width
from mindbatch.config_json.sizes import ACTIVATIONS, SizeKeys, read_sizes
from mindbatch.layers.linear import LayerNorm, RmsNorm
from mindbatch.layers.rank import Tensor, Tokens
from mindbatch.models import ModelType, llama

NAMES = llama.LayerNames(
    "gpt_neox.layers", attention="attention", output="dense", up=("dense_h_to_4h",), down="dense_4h_to_h"
)


@dataclass(frozen=True)
class GptNeoxDetails(TypeDetails):
    """The sums of a block; of GPT-NeoX and its relatives.

    is_parallel: attention and MLP read the same x, by one norm where shares_norm, and are added to it.
    adds_normed: attention and MLP are added to the norm of x that they read, times normed_factor.
    """

    is_parallel: bool = False
    shares_norm: bool = False
    adds_normed: bool = False
    normed_factor: float = 1.0


def describe(reader: ConfigReader) -> Architecture:
    arch = read_sizes(reader, SizeKeys(epsilon="layer_norm_eps", activation="", tied=""))
    base = reader.number("rotary_emb_base")
    reader.needs("rope_scaling", [None])
    reader.needs("tie_word_embeddings", [False])
    bias = reader.flag("attention_bias")
    return replace(
        arch,
        activation=reader.choice("hidden_act", ACTIVATIONS | {"gelu_fast": "gelu_tanh"}),
        rotary=plain_rotary(base, rotary_width(reader, arch.head_dim, "rotary_pct")),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        details=GptNeoxDetails(is_parallel=reader.flag("use_parallel_residual")),
    )


class Attention(llama.Attention):
    """Query, key and value by one matrix, interleaved head by head; the output by another."""

    def projections(self, a: Architecture, source: str) -> tuple[Part, ...]:
        fused = f"{source}.query_key_value.weight"
        return interleaved(fused, (a.head_dim,) * 3, a.heads, a.hidden_size, a.head_dim)


class Block(llama.Block):
    """x + attention(norm(x)), then x + mlp(norm(x)), as Megatron names them."""

    norm_type: type[RmsNorm] = LayerNorm

    def __init__(
        self,
        a: Architecture,
        layer: int,
        names: llama.LayerNames,
        attention: type[llama.Attention] = Attention,
    ) -> None:
        self.names, self.attention_type = names, attention
        super().__init__(a, layer)
        details = a.details_of(GptNeoxDetails)
        self.shares_norm, self.factor = details.shares_norm, details.normed_factor
        if details.shares_norm:
            del self.mlp_norm


class ParallelBlock(Block):
    """x + (attention(norm(x)) + mlp(norm(x))), of one norm or two."""

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        normed_TH = self.attention_norm(x_TH)
        attended_TH = self.attention(normed_TH, tokens)
        if not self.shares_norm:
            normed_TH = self.mlp_norm(x_TH)
        return x_TH + (attended_TH + self.mlp(normed_TH, tokens))


class NormedSumBlock(Block):
    """f * n + attention(n) for n = norm(x), then the same with the MLP."""

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        normed_TH = self.attention_norm(x_TH)
        x_TH = self.attention(normed_TH, tokens) + normed_TH * self.factor
        normed_TH = self.mlp_norm(x_TH)
        return self.mlp(normed_TH, tokens) + normed_TH * self.factor


def block(
    a: Architecture, layer: int, names: llama.LayerNames = NAMES, attention: type[llama.Attention] = Attention
) -> Block:
    details = a.details_of(GptNeoxDetails)
    kind = ParallelBlock if details.is_parallel else NormedSumBlock if details.adds_normed else Block
    return kind(a, layer, names, attention)


MODEL = ModelType(
    describe,
    llama.with_blocks(block, LayerNorm, ("gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out")),
    prefix="gpt_neox.",
    unused_tensors=("*.attention.bias", "*.attention.masked_bias", "*rotary_emb.inv_freq"),
)
