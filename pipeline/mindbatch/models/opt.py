"""opt: GPT-2's shape with ReLU, and positions that are counted from 2."""

from dataclasses import dataclass, replace

from mindbatch.architecture.architecture import Architecture, TypeDetails
from mindbatch.architecture.tensor_spec import Part
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import SizeKeys, read_sizes
from mindbatch.layers.decoder import Decoder
from mindbatch.layers.linear import Head, LayerNorm, ReplicatedLinear, Table, TokenEmbedding
from mindbatch.layers.rank import Tensor, Tokens
from mindbatch.models import gpt2, llama

FIRST_POSITION = 2
"""The row of the first token's position; nothing reads the rows before it."""
KEYS = SizeKeys(inner="ffn_dim", epsilon="")
DECODER = "model.decoder"


@dataclass(frozen=True)
class OptDetails(TypeDetails):
    """norms_before: norms precede attention and MLP; else they follow the sums.
    embedding_size: width of the token embedding and of what the head takes.
    """

    norms_before: bool
    embedding_size: int


def describe(reader: ConfigReader) -> Architecture:
    arch = read_sizes(reader, KEYS, bias=reader.flag("enable_bias"))
    width = reader.positive("word_embed_proj_dim", arch.hidden_size)
    reader.needs("layer_norm_elementwise_affine", [True])
    norms_before = reader.flag("do_layer_norm_before")
    if norms_before:
        reader.needs("_remove_final_layer_norm", [False])
    else:
        reader.ignore(["_remove_final_layer_norm"])  # there is none
    return replace(arch, details=OptDetails(norms_before, embedding_size=width))


class Block(llama.Block):
    """x + attention(norm(x)), then x + mlp(norm(x)).

    With norms behind the sums, each of them begins what follows it: the first is of the layer before, and the
    last that of the model. Then it is n + attention(n) for n = norm(x), and the same with the MLP.
    """

    def __init__(self, a: Architecture, layer: int) -> None:
        source, before = _layer(layer), _layer(layer - 1)
        self.norms_before = a.details_of(OptDetails).norms_before
        first, second = f"{source}.self_attn_layer_norm", f"{source}.final_layer_norm"
        if not self.norms_before:
            first, second = f"{before}.final_layer_norm", first
        self.is_normed = layer > 0 or self.norms_before
        if self.is_normed:
            self.attention_norm = LayerNorm(first, a.hidden_size, a.norm_epsilon)
        self.attention = llama.Attention(a, f"{source}.self_attn", layer, "out_proj")
        self.mlp_norm = LayerNorm(second, a.hidden_size, a.norm_epsilon)
        self.mlp = llama.Mlp(a, source, ["fc1"], "fc2")

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        if self.norms_before:
            return super().forward(x_TH, tokens)
        normed_TH = self.attention_norm(x_TH) if self.is_normed else x_TH
        normed_TH = self.mlp_norm(self.attention(normed_TH, tokens) + normed_TH)
        return self.mlp(normed_TH, tokens) + normed_TH


class Opt(Decoder):
    """Token and position embedding, blocks, a last norm and the head, between two matrices in OPT-350m."""

    def __init__(self, a: Architecture) -> None:
        super().__init__(a)
        details, hidden = a.details_of(OptDetails), a.hidden_size
        width, self.is_narrowed = details.embedding_size, details.embedding_size != hidden
        self.embedding = TokenEmbedding(f"{DECODER}.embed_tokens", a.vocab_size, width)
        rows = a.max_positions + FIRST_POSITION
        self.positions = Table(f"{DECODER}.embed_positions", rows, hidden, FIRST_POSITION)
        last = _layer(a.num_layers - 1) if not details.norms_before else DECODER
        self.norm = LayerNorm(f"{last}.final_layer_norm", hidden, a.norm_epsilon)
        self.head = Head("lm_head", a.vocab_size, width, tied=a.tied)
        if self.is_narrowed:
            self.embedding.project = ReplicatedLinear(Part(f"{DECODER}.project_in.weight", hidden, width))
            self.head.project = ReplicatedLinear(Part(f"{DECODER}.project_out.weight", width, hidden))
        self.layers = [Block(a, layer) for layer in range(a.num_layers)]

    def embed(self, tokens: Tokens) -> Tensor:
        rows = self.embedding(tokens)
        if self.is_narrowed:
            rows = self.embedding.project(rows, tokens)
        return rows + self.positions(tokens.positions)

    def finish(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        hidden_TH = self.norm(x_TH)
        return self.head.project(hidden_TH, tokens) if self.is_narrowed else hidden_TH


def _layer(index: int) -> str:
    return f"{DECODER}.layers.{index}"


MODEL = replace(gpt2.MODEL, describe=describe, tree=Opt, prefix="model.", unused_tensors=())
