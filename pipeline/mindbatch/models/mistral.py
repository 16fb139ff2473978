"""mistral: Llama's shape with 8 key/value heads by default and a sliding window on every layer."""

from __future__ import annotations

from mindbatch.layers.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.llama import PREFIX, UNUSED_TENSORS, describe_family, tensors

__all__ = ["PREFIX", "UNUSED_TENSORS", "describe", "tensors"]


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `mistral` configuration; sliding_window null means full attention.

    An absent sliding_window means transformers' default, 4096.
    """
    layers = reader.positive("num_hidden_layers")
    window = 0 if reader.is_null("sliding_window") else reader.positive("sliding_window", 4096)
    windows = (window,) * layers
    return describe_family(reader, default_kv_heads=8, default_max_positions=131072, windows=windows)
