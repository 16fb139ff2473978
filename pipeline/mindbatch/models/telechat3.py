"""telechat3: Llama's shape under other defaults; what TeleChat's code can do besides is refused."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.experts import read_further_layers
from mindbatch.config_json.reader import ConfigReader
from mindbatch.models import llama, qwen2

REFUSED = ("attention_bias", "mlp_bias", "embed_layernorm", "share_attention", "share_ffn", "logn")


def describe(reader: ConfigReader) -> Architecture:
    for key in REFUSED:
        reader.needs(key, [False])
    reader.needs("rope_scaling", [None])  # its code has factors of its own
    arch = llama.describe_family(reader, windows=qwen2.read_windows(reader))
    return replace(arch, next_token_layers=read_further_layers(reader))


MODEL = replace(llama.MODEL, describe=describe)
