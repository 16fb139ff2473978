"""starcoder2: Llama's attention with windows, between layer norms, and a plain MLP; biases on everything."""

from dataclasses import replace

from mindbatch.layers.norm import LayerNorm
from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.layer_kinds import same_windows


def describe(reader: ConfigReader) -> Architecture:
    reader.needs("mlp_type", ["default"])
    reader.needs("norm_type", ["layer_norm"])
    return llama.describe_family(
        reader,
        windows=same_windows(reader),
        bias_key="use_bias",
        mlp_bias=reader.flag("use_bias"),
        epsilon_key="norm_epsilon",
    )


class Block(llama.Block):
    def __init__(self, a: Architecture, layer: int) -> None:
        super().__init__(a, layer)
        source = f"model.layers.{layer}"
        self.attention_norm = LayerNorm(f"{source}.input_layernorm", a.hidden_size, a.norm_epsilon)
        self.mlp_norm = LayerNorm(f"{source}.post_attention_layernorm", a.hidden_size, a.norm_epsilon)
        self.mlp = llama.Mlp(a, f"{source}.mlp", ["c_fc"], "c_proj")


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block, LayerNorm))
