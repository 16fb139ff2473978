"""mixtral: Mistral's attention, and experts in every layer."""

from dataclasses import replace

from mindbatch.models import experts, llama
from mindbatch.models.architecture import Architecture, Experts
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.sizes import same_windows

NAMES = experts.ExpertNames("block_sparse_moe", gate="w1", up="w3", down="w2")


def describe(reader: ConfigReader) -> Architecture:
    arch = llama.describe_family(reader, windows=same_windows(reader))
    sparse = tuple(range(arch.num_layers))
    routing = experts.read_routing(reader, "num_local_experts", is_normalised=True, layers=sparse)
    return replace(arch, experts=Experts(routing, arch.intermediate_size, sparse))


class Block(experts.Block):
    expert_names = NAMES


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block))
