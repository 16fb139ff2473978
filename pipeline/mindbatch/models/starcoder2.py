"""starcoder2: Llama's attention with windows, between layer norms, and a plain MLP; biases on everything."""

from dataclasses import replace

from mindbatch.layers.linear import LayerNorm
from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.sizes import same_windows


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
    names, norm_type = llama.LayerNames(up=("c_fc",), down="c_proj"), LayerNorm


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block, LayerNorm))
