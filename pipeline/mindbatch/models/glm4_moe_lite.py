"""glm4_moe_lite: GLM-4.7-Flash. DeepSeek-V3 in other sizes, with a list of the layers that have experts."""

from __future__ import annotations

from dataclasses import replace

from mindbatch.models import deepseek_v3, experts
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader

# Of transformers' Glm4MoeLiteConfig.
DEFAULTS = deepseek_v3.DEFAULTS | {
    "vocab_size": 154880,
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "n_routed_experts": 64,
    "routed_scaling_factor": 1.8,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
}
_KINDS = ("dense", "sparse")


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `glm4_moe_lite` configuration."""
    arch = deepseek_v3.describe_attention(reader, DEFAULTS)
    sparse = read_sparse_layers(reader, arch.num_layers, first=1)
    return replace(arch, experts=experts.read_scored_experts(reader, arch.num_layers, sparse))


def read_sparse_layers(reader: ConfigReader, layers: int, first: int | None) -> tuple[int, ...]:
    """Layers with experts: by mlp_layer_types, else all behind the first ones.

    first: how many these must be, as the type's class has it; None: any number.
    """
    kinds = reader.value("mlp_layer_types")
    if kinds is None:
        if first is not None:
            reader.needs("first_k_dense_replace", [first])
        return experts.layers_behind(reader, layers)
    reader.ignore(["first_k_dense_replace"])
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in _KINDS for kind in kinds):
        reader.fault("mlp_layer_types", f"must name {layers} layers, each one of {', '.join(_KINDS)}")
        return ()
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "sparse")


MODEL = replace(
    deepseek_v3.MODEL,
    describe=describe,
    defaults=DEFAULTS,
    # The layer that guesses a token more, behind the last one of the published size.
    unused_tensors=(*deepseek_v3.MODEL.unused_tensors, "model.layers.47.*"),
)
