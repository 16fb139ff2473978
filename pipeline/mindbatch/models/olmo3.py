"""olmo3: OLMo 2 with a window on most layers; only the layers without one have the scaling of positions."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import plain_rotary
from mindbatch.config_json.sizes import windows_by_pattern
from mindbatch.models import olmo2

WINDOWS_BUT_EVERY = 4


def describe(reader: ConfigReader) -> Architecture:
    windows = windows_by_pattern(reader, WINDOWS_BUT_EVERY)
    arch = olmo2.MODEL.describe(reader)
    theta = reader.number("rope_theta")
    reader.needs("rope_local_base_freq", [theta])  # of rope_parameters that name the base of both kinds
    unscaled = plain_rotary(theta, arch.head_dim)
    rotaries = tuple(unscaled if window else arch.rotary for window in windows)
    return replace(arch, windows=windows, layer_rotaries=rotaries)


MODEL = replace(olmo2.MODEL, describe=describe)
