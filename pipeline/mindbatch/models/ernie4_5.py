"""ernie4_5: Llama's shape with a head size of its own, and heads rotated in pairs of neighbours."""

from __future__ import annotations

from dataclasses import replace

from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader

# Of transformers' Ernie4_5Config.
DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 103424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "use_bias": False,
    "head_dim": 128,
}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of an `ernie4_5` configuration."""
    bias = reader.flag("use_bias")
    arch = llama.describe_family(reader, qkv_bias=bias, output_bias=bias, mlp_bias=bias)
    assert arch.rotary is not None
    return replace(arch, rotary=replace(arch.rotary, is_interleaved=True))


MODEL = replace(llama.MODEL, describe=describe, defaults=DEFAULTS)
