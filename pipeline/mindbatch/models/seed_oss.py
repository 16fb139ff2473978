"""seed_oss: Llama's shape with a head size of its own, and biases of query, key and value."""

from __future__ import annotations

from dataclasses import replace

from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader

# Of transformers' SeedOssConfig.
DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 155136,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "max_position_embeddings": 524288,
    "attention_bias": True,
    "attention_out_bias": False,
    "head_dim": 128,
}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `seed_oss` configuration."""
    reader.ignore(["residual_dropout"])  # of training
    return llama.describe_family(
        reader,
        qkv_bias=reader.flag("attention_bias"),
        output_bias=reader.flag("attention_out_bias"),
        mlp_bias=reader.flag("mlp_bias"),
    )


MODEL = replace(llama.MODEL, describe=describe, defaults=DEFAULTS)
