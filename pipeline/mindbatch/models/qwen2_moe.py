"""qwen2_moe: Qwen2's attention, and experts beside a shared network with a gate of its own."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import FULL, SLIDING, requested_window, windows_by_kind
from mindbatch.models import llama, qwen3_moe

NAMES = qwen3_moe.ExpertNames(shared="shared_expert")


def describe(reader: ConfigReader) -> Architecture:
    layers = reader.positive("num_hidden_layers")
    window = requested_window(reader)
    last = reader.positive("max_window_layers") if window else 0
    kinds = [SLIDING if i % 2 == 0 and i < last else FULL for i in range(layers)]
    windows = windows_by_kind(reader, window, kinds)
    arch = llama.describe_family(reader, windows=windows, qkv_bias="qkv_bias")
    experts = qwen3_moe.read_experts(reader, layers)
    shared = reader.positive("shared_expert_intermediate_size")
    return replace(arch, experts=replace(experts, shared=(shared,), shared_is_gated=True))


class Block(qwen3_moe.Block):
    expert_names = NAMES


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block))
