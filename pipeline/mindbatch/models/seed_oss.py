"""seed_oss: Llama's shape with a head size of its own, and biases of query, key and value."""

from dataclasses import replace

from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader


def describe(reader: ConfigReader) -> Architecture:
    return llama.describe_family(
        reader,
        qkv_bias=reader.flag("attention_bias"),
        output_bias=reader.flag("attention_out_bias"),
        mlp_bias=reader.flag("mlp_bias"),
    )


MODEL = replace(llama.MODEL, describe=describe)
