"""deepseek_v2: latent attention as in deepseek_v3, and experts that a softmax chooses."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture, Experts
from mindbatch.config_json import experts
from mindbatch.config_json.reader import ConfigReader
from mindbatch.kernels.shapes import Routing
from mindbatch.models import deepseek_v3, llama

GREEDY, OF_GROUPS = "greedy", "group_limited_greedy"


def describe(reader: ConfigReader) -> Architecture:
    arch = deepseek_v3.describe_latent(reader, is_interleaved=True)
    arch = deepseek_v3.with_yarn_scale(reader, arch)
    reader.needs("mlp_bias", [False])
    reader.needs("scoring_func", ["softmax"])
    reader.needs("moe_layer_freq", [1])
    layers = experts.layers_behind(reader, arch.num_layers)
    inner = reader.positive("moe_intermediate_size")
    shared = (inner * reader.positive("n_shared_experts"),)
    return replace(arch, experts=Experts(_routing(reader, layers), inner, layers, shared=shared))


def _routing(reader: ConfigReader, layers: tuple[int, ...]) -> Routing:
    """The best of all experts, or those of the groups with the best one each."""
    routing = experts.read_routing(reader, "n_routed_experts", is_normalised=False, layers=layers)
    routing = replace(routing, scale=reader.number("routed_scaling_factor"))
    method = reader.choice("topk_method", {GREEDY: GREEDY, OF_GROUPS: OF_GROUPS})
    if method == OF_GROUPS:
        return experts.read_groups(reader, routing, group_best=1)
    reader.ignore(["n_group", "topk_group"])
    return routing


MODEL = replace(deepseek_v3.MODEL, describe=describe, unused_tensors=llama.MODEL.unused_tensors)
