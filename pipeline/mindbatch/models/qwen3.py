"""qwen3: Llama's shape with a head size of its own and a norm on each query and key head."""

from __future__ import annotations

from mindbatch.layers.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.llama import PREFIX, UNUSED_TENSORS, describe_family, tensors
from mindbatch.models.qwen2 import read_windows

__all__ = ["PREFIX", "UNUSED_TENSORS", "describe", "tensors"]


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `qwen3` configuration."""
    bias = reader.flag("attention_bias", False)
    return describe_family(
        reader,
        default_kv_heads=32,
        default_head_dim=128,
        default_max_positions=32768,
        windows=read_windows(reader),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )
