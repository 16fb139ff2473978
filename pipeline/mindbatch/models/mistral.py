"""mistral: Llama's shape with 8 key/value heads by default and a sliding window on every layer."""

from __future__ import annotations

from dataclasses import replace

from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `mistral` configuration; sliding_window null means full attention."""
    window = 0 if reader.raw("sliding_window") is None else reader.positive("sliding_window")
    return llama.describe_family(reader, windows=(window,) * reader.positive("num_hidden_layers"))


MODEL = replace(llama.MODEL, describe=describe)
