"""qwen3: Llama's shape with a head size of its own and a norm on each query and key head."""

from __future__ import annotations

from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.llama import PREFIX, UNUSED_TENSORS, describe_family, tensors
from mindbatch.models.qwen2 import DEFAULTS as QWEN2_DEFAULTS
from mindbatch.models.qwen2 import read_windows

__all__ = ["DEFAULTS", "PREFIX", "UNUSED_TENSORS", "describe", "tensors"]

# Of transformers' Qwen3Config.
DEFAULTS = QWEN2_DEFAULTS | {"head_dim": 128}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `qwen3` configuration."""
    bias = reader.flag("attention_bias")
    return describe_family(
        reader,
        windows=read_windows(reader),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )
