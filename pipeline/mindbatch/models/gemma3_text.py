"""gemma3_text: Gemma 2 with normed query and key heads, and rotary positions of two bases.

Also the text part of gemma3, whose images are not read.
"""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import plain_rotary
from mindbatch.config_json.sizes import windows_by_pattern
from mindbatch.models import gemma2

WINDOWS_BUT_EVERY = 6


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `gemma3_text` configuration.

    The scaling of positions is that of the layers without a window.
    """
    reader.needs("use_bidirectional_attention", [False])
    reader.needs("attn_logit_softcapping", [None])  # transformers leaves it out
    windows = windows_by_pattern(reader, reader.positive("sliding_window_pattern", WINDOWS_BUT_EVERY))
    arch = gemma2.describe_family(reader, windows, qk_norm=True)
    local = plain_rotary(reader.number("rope_local_base_freq"), arch.head_dim)
    rotaries = (local if window else arch.rotary for window in windows)
    return replace(arch, layer_rotaries=tuple(rotaries))


MODEL = replace(
    gemma2.MODEL,
    describe=describe,
)
