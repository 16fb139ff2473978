"""mt5: T5 v1.1 over many languages, with other defaults."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import ConfigReader
from mindbatch.models import t5


def describe(reader: ConfigReader) -> Architecture:
    reader.needs("scale_decoder_outputs", [False])
    # All published models have a head of their own.
    return replace(t5.describe(reader), tied=False, logits_factor=1.0)


MODEL = replace(t5.MODEL, describe=describe)
