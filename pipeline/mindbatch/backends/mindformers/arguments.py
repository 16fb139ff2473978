"""Makes the arguments of MindFormers' configuration classes, and refuses what these do not support."""

from collections.abc import Mapping
from typing import Any

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import ConfigReader

NOT_COMPUTED = "MindFormers 1.9 does not compute it"
YARN_DEFAULTS = {"beta_fast": 32.0, "beta_slow": 1.0}
LATENT_SCALES = ("mscale", "mscale_all_dim")
_ORIGINAL = "original_max_position_embeddings"
_YARN_KEYS = {*YARN_DEFAULTS, *LATENT_SCALES, "type", "rope_type", "factor", _ORIGINAL}


def of_qwen(reader: ConfigReader, arch: Architecture) -> dict[str, Any]:
    """Makes the arguments of Qwen2 and TeleChat3: Llama's sizes, without sliding windows."""
    if any(arch.windows):
        reader.error("use_sliding_window", f"{NOT_COMPUTED}; allowed: false, or model.provider=native")
    return _grouped(reader, arch) | _scaling(reader, arch)


def of_qwen3(reader: ConfigReader, arch: Architecture) -> dict[str, Any]:
    """Makes the arguments of `of_qwen`; the class itself has norms of heads."""
    _never(reader, "attention_bias")
    return of_qwen(reader, arch)


def of_qwen3_moe(reader: ConfigReader, arch: Architecture) -> dict[str, Any]:
    """Makes the arguments of `of_qwen3`, with experts in all layers."""
    _never(reader, "mlp_only_layers")
    reader.needs("decoder_sparse_step", [1])
    return of_qwen3(reader, arch) | _experts(reader, arch, "num_experts")


def of_glm4(reader: ConfigReader, arch: Architecture) -> dict[str, Any]:
    """Makes the arguments of GLM-4, which rotates half of each head."""
    if reader.number("partial_rotary_factor") != 0.5:
        reader.error("partial_rotary_factor", f"{NOT_COMPUTED}; allowed: 0.5")
    return _partly_rotated(reader, arch)


def of_glm4_moe(reader: ConfigReader, arch: Architecture) -> dict[str, Any]:
    """Makes the arguments of GLM-4 MoE: a part of each head is rotated; experts follow dense layers."""
    return _partly_rotated(reader, arch) | _shared_experts(reader, arch) | {"use_qk_norm": arch.qk_norm}


def of_deepseek_v3(reader: ConfigReader, arch: Architecture) -> dict[str, Any]:
    """Makes the arguments of DeepSeek-V3: latent attention with compressed queries, and experts."""
    _never(reader, "attention_bias", "tie_word_embeddings")
    reader.needs("rope_interleave", [True])
    latent = arch.latent
    assert latent is not None, "every DeepSeek-V3 has it"
    if not latent.query_rank:
        reader.error("q_lora_rank", "MindFormers 1.9 does not load queries that are not compressed")
    arguments = _sizes(reader, arch) | _shared_experts(reader, arch) | _latent_scaling(reader, arch)
    return arguments | {
        "num_key_value_heads": arch.heads,
        "q_lora_rank": latent.query_rank,
        "kv_lora_rank": latent.rank,
        "qk_nope_head_dim": latent.plain,
        "qk_rope_head_dim": latent.rotated,
        "v_head_dim": latent.value,
    }


def of_telechat2(reader: ConfigReader, arch: Architecture) -> dict[str, Any]:
    """Makes the arguments of TeleChat2, whose class has names of its own."""
    return {
        "vocab_size": arch.vocab_size,
        "hidden_size": arch.hidden_size,
        "ffn_hidden_size": arch.intermediate_size,
        "n_layer": arch.num_layers,
        "n_head": arch.heads,
        "num_key_value_heads": arch.kv_heads,
        "layer_norm_epsilon": arch.norm_epsilon,
        "max_position_embeddings": arch.max_positions,
        "tie_word_embeddings": arch.tied,
        "rope_theta": reader.number("rope_theta"),
    }


def _sizes(reader: ConfigReader, arch: Architecture) -> dict[str, Any]:
    reader.choice("hidden_act", {"silu": "silu", "swish": "silu"})
    return {
        "vocab_size": arch.vocab_size,
        "hidden_size": arch.hidden_size,
        "intermediate_size": arch.intermediate_size,
        "num_hidden_layers": arch.num_layers,
        "num_attention_heads": arch.heads,
        "num_key_value_heads": arch.kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": arch.max_positions,
        "rms_norm_eps": arch.norm_epsilon,
        "tie_word_embeddings": arch.tied,
        "rope_theta": reader.number("rope_theta"),
    }


def _grouped(reader: ConfigReader, arch: Architecture) -> dict[str, Any]:
    return _sizes(reader, arch) | {"head_dim": arch.head_dim, "attention_bias": arch.qkv_bias}


def _partly_rotated(reader: ConfigReader, arch: Architecture) -> dict[str, Any]:
    if reader.value("rope_scaling"):
        reader.error("rope_scaling", f"{NOT_COMPUTED} for this family; allowed: null")
    return _grouped(reader, arch) | {"partial_rotary_factor": reader.number("partial_rotary_factor")}


def _never(reader: ConfigReader, *keys: str) -> None:
    """Refuses keys that MindFormers would ignore silently."""
    for key in keys:
        if reader.value(key):
            reader.error(key, f"{NOT_COMPUTED}; allowed: false, null")


def _scaling(reader: ConfigReader, arch: Architecture) -> dict[str, Any]:
    """Makes the argument rope_scaling, or {} if positions are not scaled."""
    rope_scaling: Any = reader.value("rope_scaling")
    if not isinstance(rope_scaling, Mapping):
        return {}
    kind = rope_scaling.get("rope_type") or rope_scaling.get("type") or "default"
    if kind == "default":
        return {}
    if kind != "yarn":
        reader.error("rope_scaling", f"rope_type {kind!r}: {NOT_COMPUTED}; allowed: default, yarn")
        return {}
    others = sorted(key for key in rope_scaling.keys() - _YARN_KEYS if rope_scaling[key] is not None)
    if others:
        reader.error("rope_scaling", f"{', '.join(others)}: {NOT_COMPUTED}; remove it")
    settings = YARN_DEFAULTS | {
        "rope_type": "yarn",
        "factor": float(rope_scaling["factor"]),
        _ORIGINAL: rope_scaling.get(_ORIGINAL) or arch.max_positions,
        **{
            key: rope_scaling[key]
            for key in (*YARN_DEFAULTS, *LATENT_SCALES)
            if rope_scaling.get(key) is not None
        },
    }
    return {"rope_scaling": settings}


def _latent_scaling(reader: ConfigReader, arch: Architecture) -> dict[str, Any]:
    """Makes the arguments of scaling, explicitly: MindFormers' default is YaRN with factor 40."""
    arguments = _scaling(reader, arch)
    if not arguments:
        return {"rotary_scaling_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    scales = [arguments["rope_scaling"].get(key) for key in LATENT_SCALES]
    if not scales[0] or scales[0] != scales[1]:
        reader.error("rope_scaling", "mscale and mscale_all_dim must be equal and above 0")
    return arguments


def _experts(reader: ConfigReader, arch: Architecture, count_key: str) -> dict[str, Any]:
    experts = arch.experts
    assert experts is not None, "the family has experts"
    routing = experts.routing
    if routing.chosen < 2:
        reader.error("num_experts_per_tok", f"must be from 2 to {count_key}={routing.experts}")
    return {
        count_key: routing.experts,
        "moe_intermediate_size": experts.intermediate_size,
        "num_experts_per_tok": routing.chosen,
        "norm_topk_prob": routing.is_normalised,
    }


def _shared_experts(reader: ConfigReader, arch: Architecture) -> dict[str, Any]:
    """Makes the arguments of shared experts and of routed experts chosen by groups."""
    arguments = _experts(reader, arch, "n_routed_experts")
    experts = arch.experts
    assert experts is not None
    routing = experts.routing
    chosen = routing.chosen
    # MindFormers rates a group by its best chosen / topk_group experts, the model by its best two.
    allowed = [groups for groups in range(1, routing.groups + 1) if groups in (chosen / 2, routing.groups)]
    allowed = [groups for groups in allowed if chosen % groups == 0]
    if routing.chosen_groups not in allowed:
        reader.error(
            "topk_group",
            f"MindFormers rates a group by its best {chosen / routing.chosen_groups:.3g} experts, the model "
            f"by two; allowed with num_experts_per_tok={chosen} and n_group={routing.groups}: "
            f"{' or '.join(map(str, allowed)) or 'none'}",
        )
    return arguments | {
        "n_shared_experts": sum(experts.shared) // experts.intermediate_size,
        "routed_scaling_factor": routing.scale,
        "n_group": routing.groups,
        "topk_group": routing.chosen_groups,
        "first_k_dense_replace": arch.num_layers - len(experts.layers),
    }
