"""qwen3: Llama's shape with a head size of its own and a norm on each query and key head."""

from dataclasses import replace

from mindbatch.models import llama, qwen2
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader


def describe(reader: ConfigReader) -> Architecture:
    return llama.describe_family(
        reader, windows=qwen2.read_windows(reader), bias_key="attention_bias", qk_norm=True
    )


MODEL = replace(llama.MODEL, describe=describe)
