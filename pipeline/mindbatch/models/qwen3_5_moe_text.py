"""qwen3_5_moe_text: Qwen3.5 with Qwen3-Next's experts in every layer.

Also the text part of qwen3_5_moe, whose images are not read.
"""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture, Experts
from mindbatch.config_json import experts
from mindbatch.config_json.reader import ConfigReader
from mindbatch.models import qwen3_5_text


def describe(reader: ConfigReader) -> Architecture:
    inner = reader.positive("moe_intermediate_size")
    arch = qwen3_5_text.describe(reader, default_intermediate=inner)
    reader.needs("norm_topk_prob", [True])
    layers = tuple(range(arch.num_layers))
    routing = experts.read_routing(reader, "num_experts", is_normalised=True, layers=layers)
    shared = reader.positive("shared_expert_intermediate_size")
    mixtures = Experts(routing, inner, layers, shared=(shared,), shared_is_gated=True)
    return replace(arch, experts=mixtures)


MODEL = replace(qwen3_5_text.MODEL, describe=describe)
