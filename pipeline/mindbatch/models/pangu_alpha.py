"""pangu_alpha: GPT-2's blocks, and a last one whose queries are a table of positions.

The model_type of its folders is gpt_pangu. Sources: Zeng et al., "PanGu-alpha" (2021); the behaviour of
MindFormers 1.0's models/pangualpha and of modeling_gptpangu.py in the published folders.
"""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import Part
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import SizeKeys, read_sizes
from mindbatch.kernels.operations.dense import joined
from mindbatch.layers.attention import PagedAttention
from mindbatch.layers.decoder import Decoder
from mindbatch.layers.linear import ColumnLinear, Head, LayerNorm, RowLinear, Table, TokenEmbedding
from mindbatch.layers.rank import Module, Tensor, Tokens
from mindbatch.models import gpt2, llama

KEYS = SizeKeys(layers="num_layers", heads="num_heads", inner_is_wide=True)


def describe(reader: ConfigReader) -> Architecture:
    arch = read_sizes(reader, KEYS, bias=True)
    scale = arch.head_dim**-0.5 if reader.flag("scale_attn_weights") else 1.0
    return replace(arch, attention_scales=(scale,) * arch.num_layers)


class QueryAttention(Module):
    """Attention whose queries are of positions: their matrix is another than that of keys and values."""

    def __init__(self, a: Architecture, source: str, layer: int) -> None:
        query, *keys = llama.qkv_parts(a, *(f"{source}.{which}_proj.weight" for which in "qkv"))
        self.q, self.kv = ColumnLinear(query, bias=True), ColumnLinear(*keys, bias=True)
        self.attend = PagedAttention(a, layer)
        joined = Part(f"{source}.c_proj.weight", a.hidden_size, a.hidden_size, unit=a.head_dim)
        self.output = RowLinear(joined, bias=True)

    def forward(self, x_TH: Tensor, queries_TH: Tensor, tokens: Tokens) -> Tensor:
        qkv = joined(self.q(queries_TH, tokens), self.kv(x_TH, tokens))
        return self.output(self.attend(qkv, tokens), tokens)


class Block(llama.Block):
    names, norm_type = gpt2.NAMES, LayerNorm


class LastBlock(Block):
    """The one at the top: a norm of all that came before, and queries made of a table of positions."""

    def __init__(self, a: Architecture, layer: int) -> None:
        self.positions = Table("transformer.wqe", a.max_positions, a.hidden_size)
        self.first_norm = LayerNorm("transformer.ln_f", a.hidden_size, a.norm_epsilon)
        super().__init__(a, layer)
        self.attention = QueryAttention(a, f"transformer.h.{layer}.attn", layer)

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        x_TH = self.first_norm(x_TH)
        queries_TH = self.positions(tokens.positions)
        x_TH = x_TH + self.attention(self.attention_norm(x_TH), queries_TH, tokens)
        return x_TH + self.mlp(self.mlp_norm(x_TH), tokens)


class PanguAlpha(Decoder):
    """Token and position embedding, blocks and the head, which no norm precedes."""

    def __init__(self, a: Architecture) -> None:
        super().__init__(a)
        self.embedding = TokenEmbedding("transformer.wte", a.vocab_size, a.hidden_size)
        self.positions = Table("transformer.wpe", a.max_positions, a.hidden_size)
        self.head = Head("lm_head", a.vocab_size, a.hidden_size, tied=a.tied)
        last = a.num_layers - 1
        self.layers = [*(Block(a, layer) for layer in range(last)), LastBlock(a, last)]

    def embed(self, tokens: Tokens) -> Tensor:
        return self.embedding(tokens) + self.positions(tokens.positions)

    def finish(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        return x_TH


MODEL = replace(
    gpt2.MODEL,
    describe=describe,
    tree=PanguAlpha,
    prefix="transformer.",
    unused_tensors=("*.attn.bias", "*.attn.masked_bias"),
)
