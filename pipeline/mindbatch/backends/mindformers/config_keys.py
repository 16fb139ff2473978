"""Keys of config.json that families of MindFormers share: each read, checked against what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindbatch.backends.mindformers.description import Experts, LatentAttention
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.rope import read_rotary

NOT_COMPUTED = "MindFormers 1.9 does not compute it"
YARN_DEFAULTS = {"beta_fast": 32.0, "beta_slow": 1.0}
_YARN_KEYS = {*YARN_DEFAULTS, "type", "rope_type", "factor", "original_max_position_embeddings"}


def sizes(reader: ConfigReader) -> dict[str, Any]:
    """The arguments that all families have."""
    reader.choice("hidden_act", {"silu": "silu", "swish": "silu"})
    refuse_code(reader)
    heads = reader.positive("num_attention_heads")
    return {
        "vocab_size": reader.positive("vocab_size"),
        "hidden_size": reader.positive("hidden_size"),
        "intermediate_size": reader.positive("intermediate_size"),
        "num_hidden_layers": reader.positive("num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads(reader, heads),
        "hidden_act": "silu",
        "max_position_embeddings": reader.positive("max_position_embeddings"),
        "rms_norm_eps": reader.number("rms_norm_eps"),
        "tie_word_embeddings": reader.flag("tie_word_embeddings"),
        "rope_theta": reader.number("rope_theta"),
    }


def refuse_code(reader: ConfigReader) -> None:
    """Refuses keys that ask for code to be run."""
    for key in ("trust_remote_code", "register_path"):
        if reader.value(key):
            reader.fault(key, "code of a model folder or beside it is never run; remove the key")


def kv_heads(reader: ConfigReader, heads: int) -> int:
    """Key/value heads, which query heads share evenly; as many as those where config.json has null."""
    found = reader.positive("num_key_value_heads", heads)
    if heads % found:
        reader.fault("num_key_value_heads", f"must divide num_attention_heads={heads}")
    return found


def head_dim(reader: ConfigReader, given: Mapping[str, Any]) -> int:
    """Size of a head; that of hidden_size divided by the heads where config.json has none."""
    found = reader.positive("head_dim", given["hidden_size"] // given["num_attention_heads"] or 2)
    if found % 2:
        reader.fault("head_dim", "must be even for rotary positions")
    return found


def never(reader: ConfigReader, *keys: str) -> None:
    """Refuses keys that ask for something that MindFormers passes over in silence."""
    for key in keys:
        if reader.value(key):
            reader.fault(key, f"{NOT_COMPUTED}; allowed: false, null")


def rotary(reader: ConfigReader, rotated: int, positions: int, *, yarn: bool = True) -> dict[str, Any]:
    """The argument rope_scaling: {} where positions are rotated as they are.

    rotated: numbers of a head that are rotated. yarn: whether the family can scale by YaRN.
    """
    read_rotary(reader, rotated, positions)
    found = reader.value("rope_scaling")
    if not isinstance(found, Mapping) or reader.faults:
        return {}
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind == "default":
        return {}
    allowed = ("default", "yarn") if yarn else ("default",)
    if kind not in allowed:
        reader.fault("rope_scaling", f"rope_type {kind!r}: {NOT_COMPUTED}; allowed: {', '.join(allowed)}")
        return {}
    return {"rope_scaling": _yarn(reader, found, positions)}


def _yarn(reader: ConfigReader, found: Mapping[str, Any], positions: int) -> dict[str, Any]:
    others = sorted(key for key in found.keys() - _YARN_KEYS - {*LATENT_SCALES} if found[key] is not None)
    if others:
        reader.fault("rope_scaling", f"{', '.join(others)}: {NOT_COMPUTED}; remove it")
    return YARN_DEFAULTS | {
        "rope_type": "yarn",
        "factor": float(found["factor"]),
        "original_max_position_embeddings": found.get("original_max_position_embeddings") or positions,
        **{key: found[key] for key in (*YARN_DEFAULTS, *LATENT_SCALES) if found.get(key) is not None},
    }


LATENT_SCALES = ("mscale", "mscale_all_dim")


def positions(arguments: Mapping[str, Any]) -> int:
    """Positions of the table of rotations, and no more than the model is said to have."""
    most, scaling = int(arguments["max_position_embeddings"]), arguments.get("rope_scaling")
    if scaling is None:
        return most
    return min(most, int(scaling["factor"] * scaling["original_max_position_embeddings"]))


def experts(reader: ConfigReader, count_key: str, **others: Any) -> Experts:
    """The experts; `others` are what the family has besides."""
    found = Experts(reader.positive(count_key), reader.positive("moe_intermediate_size"), **others)
    taken = reader.positive("num_experts_per_tok")
    if not 1 < taken <= found.count:
        reader.fault("num_experts_per_tok", f"must be from 2 to {count_key}={found.count}")
    return found


def shared_experts(reader: ConfigReader) -> tuple[Experts, dict[str, Any]]:
    """Experts of which some are shared and the rest chosen by groups, with the arguments that say so."""
    shared = reader.value("n_shared_experts") or 0
    width = reader.positive("moe_intermediate_size")
    first = reader.value("first_k_dense_replace") or 0
    for key, value in (("n_shared_experts", shared), ("first_k_dense_replace", first)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            reader.fault(key, "must be a whole number")
            shared = first = 0
    found = experts(
        reader, "n_routed_experts", first=first, shared_width=shared * width, correction_bias=True
    )
    groups, taken = reader.positive("n_group", 1), reader.positive("topk_group", 1)
    chosen = reader.positive("num_experts_per_tok")
    if found.count % groups or taken > groups or chosen % taken:
        reader.fault("n_group", "must divide n_routed_experts, and topk_group both n_group and the experts")
    elif taken < groups and chosen != 2 * taken:
        reader.fault(
            "topk_group",
            f"MindFormers 1.9 rates a group by its best num_experts_per_tok / topk_group experts, the "
            f"model by two; allowed: topk_group={chosen // 2}, or n_group={groups}",
        )
    return found, {
        "moe_intermediate_size": width,
        "num_experts_per_tok": chosen,
        "n_routed_experts": found.count,
        "n_shared_experts": shared,
        "routed_scaling_factor": reader.number("routed_scaling_factor"),
        "n_group": groups,
        "topk_group": taken,
        "first_k_dense_replace": first,
        "norm_topk_prob": reader.flag("norm_topk_prob"),
    }


def latent(reader: ConfigReader, heads: int) -> tuple[LatentAttention, dict[str, Any]]:
    """Latent attention and its arguments."""
    if reader.raw("q_lora_rank") is None:
        reader.fault("q_lora_rank", "MindFormers 1.9 does not load queries that are not compressed")
    keys = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    found = {"q_lora_rank": reader.positive("q_lora_rank", 1)} | {key: reader.positive(key) for key in keys}
    return LatentAttention(heads, *found.values()), found
