"""ernie4_5: Llama's shape with a head size of its own, and heads rotated in pairs of neighbours."""

from dataclasses import replace

from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader


def describe(reader: ConfigReader) -> Architecture:
    bias = reader.flag("use_bias")
    return llama.describe_family(reader, bias_key="use_bias", mlp_bias=bias, is_interleaved=True)


MODEL = replace(llama.MODEL, describe=describe)
