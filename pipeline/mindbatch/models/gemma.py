"""gemma: the first Gemma. Llama's shape with scaled embeddings, norms of 1 + weight and a GeGLU MLP."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import ConfigReader
from mindbatch.models import llama


def describe(reader: ConfigReader) -> Architecture:
    arch = llama.describe_family(reader, bias_key="attention_bias")
    # Files of the first releases say "gelu" and mean the approximation that the models were trained with.
    arch = replace(arch, activation="gelu_tanh") if arch.activation == "gelu" else arch
    return scaled(arch)


def scaled(arch: Architecture) -> Architecture:
    """With norms of 1 + weight, and an embedding times sqrt(hidden_size), which the head is not."""
    return replace(arch, norm_offset=1.0, embedding_factor=arch.hidden_size**0.5)


MODEL = replace(llama.MODEL, describe=describe)
