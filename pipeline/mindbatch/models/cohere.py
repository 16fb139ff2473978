"""cohere: Command R and Aya. Attention and MLP read one norm without bias; pairs rotated are neighbours."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import ConfigReader
from mindbatch.layers.linear import PlainLayerNorm
from mindbatch.layers.rank import Tensor, Tokens
from mindbatch.models import llama


def describe(reader: ConfigReader) -> Architecture:
    reader.needs("use_qk_norm", [False])  # layer norms with weights for each head: no layer computes them
    return describe_family(reader)


def describe_family(reader: ConfigReader, windows: tuple[int, ...] = ()) -> Architecture:
    reader.needs("rotary_pct", [1.0])
    arch = llama.describe_family(
        reader, windows=windows, bias_key="attention_bias", epsilon_key="layer_norm_eps", is_interleaved=True
    )
    return replace(arch, logits_factor=reader.number("logit_scale"))


class Block(llama.Block):
    """x + (attention(norm(x)) + mlp(norm(x)))."""

    norm_type = PlainLayerNorm

    def __init__(self, a: Architecture, layer: int) -> None:
        super().__init__(a, layer)
        del self.mlp_norm

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        normed_TH = self.attention_norm(x_TH)
        return x_TH + (self.attention(normed_TH, tokens) + self.mlp(normed_TH, tokens))


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block, PlainLayerNorm))
