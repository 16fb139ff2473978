"""olmo3: OLMo 2 with a window on most layers; only the layers without one have the scaling of positions."""

from dataclasses import replace

from mindbatch.models import olmo2
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.rope import plain_rotary
from mindbatch.models.sizes import windows_by_pattern

WINDOWS_BUT_EVERY = 4


def describe(reader: ConfigReader) -> Architecture:
    windows = windows_by_pattern(reader, WINDOWS_BUT_EVERY)
    arch = olmo2.describe(reader)
    theta = reader.number("rope_theta")
    reader.needs("rope_local_base_freq", [theta])  # of rope_parameters that name the base of both kinds
    unscaled = plain_rotary(theta, arch.head_dim)
    rotaries = tuple(unscaled if window else arch.rotary for window in windows)
    return replace(arch, windows=windows, layer_rotaries=rotaries)


MODEL = replace(olmo2.MODEL, describe=describe)
