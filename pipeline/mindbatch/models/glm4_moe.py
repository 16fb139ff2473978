"""glm4_moe: GLM-4.5 and 4.6. Llama with a part of each head rotated, and experts behind the first layers."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json import experts
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import read_partial_rotary
from mindbatch.models import llama, qwen3_moe


def describe(reader: ConfigReader) -> Architecture:
    arch = llama.describe_family(
        reader,
        qkv_bias="attention_bias",
        qk_norm="use_qk_norm",
        rotary=read_partial_rotary,
    )
    return replace(
        arch,
        experts=experts.read_scored_experts(reader, arch.num_layers),
        next_token_layers=experts.read_further_layers(reader),
    )


MODEL = replace(
    llama.MODEL,
    describe=describe,
    tree=llama.with_blocks(qwen3_moe.Block),
    # The layer that guesses a token more, behind the last one of the published sizes.
    unused_tensors=(*llama.MODEL.unused_tensors, "model.layers.46.*", "model.layers.92.*"),
)
