"""A small config.json of each family that MindFormers runs."""

from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
SHARED = EXPERTS | {"n_routed_experts": 8, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
TELECHAT2: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "ffn_hidden_size": 80,
    "n_layer": 2,
    "n_head": 4,
    "num_key_value_heads": 2,
    "training_seqlen": 128,
    "base_seqlen": 128,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2": SIZES,
    "qwen3": SIZES | {"head_dim": 16},
    "qwen3_moe": SIZES | EXPERTS | {"head_dim": 16, "num_experts": 8},
    "glm4": SIZES | {"head_dim": 16},
    "glm4_moe": SIZES | SHARED | {"head_dim": 16},
    "deepseek_v3": SIZES | SHARED | LATENT | {"num_key_value_heads": 4, "num_nextn_predict_layers": 1},
    "telechat3": SIZES | {"head_dim": 16},
    "telechat": TELECHAT2,
}


def config(family: str, **changes: Any) -> dict[str, Any]:
    return {"model_type": family} | CONFIGS[family] | changes
