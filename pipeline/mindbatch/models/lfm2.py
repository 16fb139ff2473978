"""lfm2: gated short convolutions, and attention with norms of heads in some of the layers.

Of arrays: see `models.llama`.
"""

from dataclasses import dataclass, replace
from functools import partial

from mindbatch.architecture.architecture import Architecture, Recurrence, TypeDetails
from mindbatch.architecture.tensor_spec import Part, fused
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import FULL, kinds_of_layers, layer_numbers, read_kernel, recurrent_layers
from mindbatch.kernels.operations.recurrent import gated
from mindbatch.layers.attention import CausalConvolution, channels
from mindbatch.layers.linear import ColumnLinear, RowLinear
from mindbatch.layers.rank import Module, Rank, Tensor, Tokens
from mindbatch.models import llama

CONVOLUTION = "conv"
NAMES = llama.LayerNames(
    attention_norm="operator_norm",
    output="out_proj",
    mlp_norm="ffn_norm",
    mlp="feed_forward",
    up=("w1", "w3"),
    down="w2",
)


@dataclass(frozen=True)
class Lfm2Details(TypeDetails):
    """has_bias: of the matrices and the convolution of a layer without attention."""

    has_bias: bool


def describe(reader: ConfigReader) -> Architecture:
    arch = llama.describe_family(reader, qk_norm=True, epsilon_key="norm_eps", activation_key="")
    tied = reader.flag("tie_embedding") if reader.has("tie_embedding") else arch.tied
    kinds = kinds_of_layers(reader, (FULL, CONVOLUTION), read_default_kinds(reader, arch.num_layers))
    layers = recurrent_layers(reader, kinds, CONVOLUTION)
    recurrence = Recurrence(layers, arch.hidden_size, read_kernel(reader, "conv_L_cache"))
    return replace(
        arch,
        tied=tied,
        intermediate_size=read_intermediate_size(reader, arch.intermediate_size),
        details=Lfm2Details(reader.flag("conv_bias")),
        recurrence=recurrence if layers else None,
    )


def read_default_kinds(reader: ConfigReader, layers: int) -> list[str]:
    """Kind of each layer where layer_types does not say it: attention in full_attn_idxs, or in all."""
    attention = layer_numbers(reader, "full_attn_idxs")
    return [FULL if attention is None or layer in attention else CONVOLUTION for layer in range(layers)]


def read_intermediate_size(reader: ConfigReader, size: int) -> int:
    """The MLP's inner size: two thirds of what the configuration says, rounded up, unless that is it."""
    size = reader.positive("block_ff_dim") if reader.has("block_ff_dim") else size
    multiple = reader.positive("block_multiple_of")
    is_given = reader.raw("block_ffn_dim_multiplier") is not None
    factor = reader.number("block_ffn_dim_multiplier") if is_given else None
    if not reader.flag("block_auto_adjust_ff_dim"):
        return size
    size = int(2 * size / 3)
    return size if factor is None else -(-int(factor * size) // multiple) * multiple


class Attention(llama.Attention):
    def __init__(self, a: Architecture, source: str, layer: int, output: str) -> None:
        super().__init__(a, source, layer, output)
        self.q_norm, self.k_norm = (
            llama.norm(a, f"{source}.{which}_layernorm", a.head_dim) for which in "qk"
        )


class ShortConvolution(Module):
    """c * convolution(b * x), of x, b and c that one matrix makes."""

    def __init__(self, a: Architecture, source: str, layer: int) -> None:
        assert a.recurrence is not None
        hidden, kernel, bias = a.hidden_size, a.recurrence.kernel, a.details_of(Lfm2Details).has_bias
        b, c, x = fused(f"{source}.in_proj.weight", (hidden,) * 3, hidden)
        self.mix = ColumnLinear(x, b, c, bias=bias)
        parts = channels(f"{source}.conv.weight", (hidden,), kernel, (1,))
        self.convolve = CausalConvolution(a, layer, *parts, bias=bias)
        self.output = RowLinear(Part(f"{source}.out_proj.weight", hidden, hidden), bias=bias)

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        self.gate = partial(gated, kind="identity", width=self.convolve.shape.channels, epsilon=0.0)

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        mixed, width = self.mix(x_TH, tokens), self.convolve.shape.channels  # [T, 3 * channels]
        y = self.convolve(self.gate(mixed, mixed, None, first=width), tokens)
        return self.output(self.gate(y, mixed, None, first=2 * width), tokens)


class Block(llama.Block):
    """Llama's block; recurrent layers have a convolution instead of attention."""

    names, attention_type = NAMES, Attention

    def __init__(self, a: Architecture, layer: int) -> None:
        super().__init__(a, layer)
        if a.is_recurrent(layer):
            self.attention = ShortConvolution(a, NAMES.in_layer(layer, "conv"), layer)


MODEL = replace(
    llama.MODEL,
    describe=describe,
    tree=llama.with_blocks(Block, ends=("model.embed_tokens", "model.embedding_norm", "lm_head")),
    beyond_ascend="convolutions with a state of each sequence",
)
