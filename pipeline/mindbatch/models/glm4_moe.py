"""glm4_moe: GLM-4.5 and 4.6. Llama with a part of each head rotated, and experts behind the first layers."""

from __future__ import annotations

from dataclasses import replace

from mindbatch.models import experts, llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.rope import read_partial_rotary

# Of transformers' Glm4MoeConfig.
DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 151552,
    "intermediate_size": 10944,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "partial_rotary_factor": 0.5,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `glm4_moe` configuration."""
    arch = llama.describe_family(
        reader,
        qkv_bias=reader.flag("attention_bias"),
        qk_norm=reader.flag("use_qk_norm"),
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
    tree=llama.with_blocks(experts.Block),
    defaults=DEFAULTS,
    # The layer that guesses a token more, behind the last one of the published sizes.
    unused_tensors=(*llama.MODEL.unused_tensors, "model.layers.46.*", "model.layers.92.*"),
)
