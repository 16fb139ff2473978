"""mixtral: Mistral's attention, and experts in every layer."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture, Experts
from mindbatch.config_json import experts
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import same_windows
from mindbatch.models import llama, qwen3_moe

NAMES = qwen3_moe.ExpertNames("block_sparse_moe", gate="w1", up="w3", down="w2")


def describe(reader: ConfigReader) -> Architecture:
    arch = llama.describe_family(reader, windows=same_windows(reader))
    sparse = tuple(range(arch.num_layers))
    routing = experts.read_routing(reader, "num_local_experts", is_normalised=True, layers=sparse)
    return replace(arch, experts=Experts(routing, arch.intermediate_size, sparse))


class Block(qwen3_moe.Block):
    expert_names = NAMES


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block))
