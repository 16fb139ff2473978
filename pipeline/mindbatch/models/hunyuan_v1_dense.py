"""hunyuan_v1_dense: Llama's shape with a norm on each query and key head, which comes after the rotation."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture, Rotary
from mindbatch.config_json.forms import Config
from mindbatch.config_json.reader import ConfigReader, is_positive_float32
from mindbatch.config_json.rope import plain_rotary, read_rotary
from mindbatch.layers.attention import Rotation
from mindbatch.layers.rank import Tensor, Tokens
from mindbatch.models import llama

# What published files say beside the factor alpha; it belongs to other scalings.
_OF_OTHER_SCALINGS = {
    "type",
    "rope_type",
    "alpha",
    "factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
}


ALWAYS: Config = {
    "use_cla": False,  # keys and values that layers share
    "use_qk_norm": True,
    "use_rotary_pos_emb": True,
    "position_embedding_xdrope": False,
    "norm_type": "rms",
}


def read_alpha_rotary(reader: ConfigReader, head_dim: int, max_positions: int) -> Rotary:
    """The rotary embedding; of type dynamic, the base is larger by a power of alpha, at any length.

    Source: the networks' own code. The power is that of NTK-aware scaling (bloc97, 2023).
    """
    scaling = reader.value("rope_scaling")
    if not isinstance(scaling, dict) or (scaling.get("rope_type") or scaling.get("type")) != "dynamic":
        return read_rotary(reader, head_dim, max_positions)
    theta, alpha = reader.number("rope_theta"), scaling.get("alpha")
    if not is_positive_float32(alpha) or head_dim < 4 or scaling.keys() - _OF_OTHER_SCALINGS:
        reader.error(
            "rope_scaling", "of type dynamic needs an alpha above 0, heads of 4 numbers, and no other key"
        )
        return Rotary((1.0,))
    base = theta * alpha ** (head_dim / (head_dim - 2))
    return plain_rotary(base, head_dim)


class Attention(llama.Attention):
    def __init__(self, a: Architecture, source: str, layer: int, output: str) -> None:
        super().__init__(a, source, layer, output)
        self.norm_heads = Rotation(replace(a, rotary=None), layer)
        self.q_norm = llama.norm(a, f"{source}.query_layernorm", a.head_dim)
        self.k_norm = llama.norm(a, f"{source}.key_layernorm", a.head_dim)

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        qkv = self.rotate(self.qkv(x_TH, tokens), tokens)
        qkv = self.norm_heads(qkv, tokens, self.q_norm, self.k_norm)
        return self.output(self.attend(qkv, tokens), tokens)


class Block(llama.Block):
    attention_type = Attention


MODEL = llama.relative(
    llama.with_blocks(Block), always=ALWAYS, bias_key="attention_bias", rotary=read_alpha_rotary
)
