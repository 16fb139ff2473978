"""cohere2: Command R7B and A. As cohere; layers with a window are rotated, the others have no positions."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.forms import Config
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import windows_by_pattern
from mindbatch.models import cohere

WINDOWS_BUT_EVERY = 4
# What published files say beside it, which this network has.
_ALWAYS: Config = {
    "position_embedding_type": "rope_gptj",
    "order_of_interleaved_layers": "local_attn_first",
    "use_embedding_sharing": True,
    "use_gated_activation": True,
    "use_parallel_block": True,
}


def describe(reader: ConfigReader) -> Architecture:
    for key, only in _ALWAYS.items():
        reader.needs(key, [only])
    every = reader.positive("sliding_window_pattern", WINDOWS_BUT_EVERY)
    reader.needs("layer_switch", [every])
    windows = windows_by_pattern(reader, every)
    arch = cohere.describe_family(reader, windows)
    return replace(arch, layer_rotaries=tuple(arch.rotary if window else None for window in windows))


MODEL = replace(cohere.MODEL, describe=describe)
