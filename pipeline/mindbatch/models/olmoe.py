"""olmoe: Llama's blocks with OLMo 2's norms of query and key, and experts in every layer."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture, Experts
from mindbatch.config_json import experts
from mindbatch.config_json.reader import ConfigReader
from mindbatch.models import llama, olmo2, qwen3_moe


def describe(reader: ConfigReader) -> Architecture:
    reader.needs("clip_qkv", [None])
    arch = llama.describe_family(reader, bias_key="attention_bias")
    layers, is_normalised = tuple(range(arch.num_layers)), reader.flag("norm_topk_prob")
    routing = experts.read_routing(reader, "num_experts", is_normalised=is_normalised, layers=layers)
    return replace(arch, experts=Experts(routing, arch.intermediate_size, layers))


class Block(qwen3_moe.Block):
    attention_type = olmo2.Attention


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block))
