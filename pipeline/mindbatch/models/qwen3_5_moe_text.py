"""qwen3_5_moe_text: Qwen3.5 with Qwen3-Next's experts in every layer.

Also the text part of qwen3_5_moe, whose images are not read.
"""

from __future__ import annotations

from dataclasses import replace

from mindbatch.models import experts, qwen3_5_text
from mindbatch.models.architecture import Architecture, Experts
from mindbatch.models.config_reader import ConfigReader

# Of transformers' Qwen3_5MoeTextConfig.
DEFAULTS = {key: value for key, value in qwen3_5_text.DEFAULTS.items() if key != "intermediate_size"} | {
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 8,
    "num_experts": 256,
}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `qwen3_5_moe_text` configuration."""
    inner = reader.positive("moe_intermediate_size")
    arch = qwen3_5_text.describe(reader, default_intermediate=inner)
    reader.needs("norm_topk_prob", [True])
    layers = tuple(range(arch.num_layers))
    routing = experts.read_routing(reader, "num_experts", is_normalised=True, layers=layers)
    shared = reader.positive("shared_expert_intermediate_size")
    mixtures = Experts(routing, inner, layers, shared=(shared,), shared_is_gated=True)
    return replace(arch, experts=mixtures)


MODEL = replace(
    qwen3_5_text.MODEL,
    describe=describe,
    defaults=DEFAULTS,
    newer_names={"num_experts": "num_local_experts"},
)
