"""mistral: Llama's shape with 8 key/value heads by default and a sliding window on every layer."""

from dataclasses import replace

from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.sizes import same_windows


def describe(reader: ConfigReader) -> Architecture:
    return llama.describe_family(reader, windows=same_windows(reader))


MODEL = replace(llama.MODEL, describe=describe)
