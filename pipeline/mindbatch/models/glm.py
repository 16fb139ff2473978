"""glm: GLM-4 of 2024. Half of each head rotated, in pairs of neighbours; gate and up in one tensor."""

from dataclasses import replace

from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.rope import read_partial_rotary


def describe(reader: ConfigReader) -> Architecture:
    return llama.describe_family(
        reader, qkv_bias=reader.flag("attention_bias"), rotary=read_partial_rotary, is_interleaved=True
    )


class Block(llama.Block):
    """Llama's, whose gate and up are one tensor of the checkpoint."""

    names = llama.LayerNames(up=("gate_up_proj",), is_fused=True)


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block))
