"""granite: Llama's shape with factors on embeddings, attention, what each layer adds, and logits."""

from dataclasses import dataclass, replace

from mindbatch.architecture.architecture import Architecture, TypeDetails
from mindbatch.config_json.reader import ConfigReader
from mindbatch.layers.rank import Tensor, Tokens
from mindbatch.models import llama

# Of transformers' GraniteConfig.
FACTORS = ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier")


@dataclass(frozen=True)
class GraniteDetails(TypeDetails):
    """residual_factor: on what attention and MLP add."""

    residual_factor: float


def describe(reader: ConfigReader) -> Architecture:
    arch = llama.MODEL.describe(reader)
    for key in FACTORS:
        if reader.raw(key) is None:
            reader.error(key, "must be a number above 0")
    return replace(
        arch,
        attention_scales=(reader.number("attention_multiplier"),) * arch.num_layers,
        embedding_factor=reader.number("embedding_multiplier"),
        logits_factor=1 / reader.number("logits_scaling"),
        details=GraniteDetails(reader.number("residual_multiplier")),
    )


class Block(llama.Block):
    """x + r * attention(norm(x)), then x + r * mlp(norm(x))."""

    def __init__(self, a: Architecture, layer: int) -> None:
        super().__init__(a, layer)
        self.factor = a.details_of(GraniteDetails).residual_factor

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        x_TH = x_TH + self.attention(self.attention_norm(x_TH), tokens) * self.factor
        return x_TH + self.mlp(self.mlp_norm(x_TH), tokens) * self.factor


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block))
