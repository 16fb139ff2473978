"""Writes tests/numerics/fixtures/latent.npz: tiny models with latent attention. As make_model_fixtures.py.

glm4_moe_lite and glm_moe_dsa are recorded with transformers 5.24.
"""

from __future__ import annotations

from typing import Any

from model_folders import LATENT

from make_model_fixtures import YARN, cases_of, write_references


def sizes(
    heads: int, query_rank: int | None, rank: int, plain: int, rotated: int, value: int
) -> dict[str, Any]:
    """Of the parts of attention."""
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": query_rank,
        "kv_lora_rank": rank,
        "qk_nope_head_dim": plain,
        "qk_rope_head_dim": rotated,
        "v_head_dim": value,
    }


BASE = {
    "vocab_size": 101,
    "hidden_size": 36,
    "intermediate_size": 56,
    "moe_intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_experts_per_tok": 2,
    "n_routed_experts": 6,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "pad_token_id": None,
}
V3 = BASE | {"model_type": "deepseek_v3", "n_group": 1, "topk_group": 1}
V2 = BASE | {"model_type": "deepseek_v2", "n_shared_experts": 1}
LITE = {key: value for key, value in BASE.items() if key != "first_k_dense_replace"} | {
    "model_type": "glm4_moe_lite",
    "num_hidden_layers": 3,
}
DSA = BASE | {"model_type": "glm_moe_dsa", "index_topk": 128, "index_head_dim": 12, "index_n_heads": 2}
CASES: dict[str, dict[str, Any]] = {
    "deepseek_v3": V3 | sizes(4, 12, 20, 8, 8, 12) | {"num_hidden_layers": 3},
    "deepseek_v3_groups": V3
    | sizes(4, 14, 22, 6, 10, 8)
    | {"n_routed_experts": 12, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3},
    "deepseek_v3_yarn": V3
    | sizes(2, None, 18, 10, 6, 7)
    | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, "rope_interleave": False}
    | {"attention_bias": True, "n_shared_experts": 2, "rms_norm_eps": 1e-6},
    "deepseek_v3_odd": V3
    | sizes(6, 10, 14, 6, 4, 10)
    | {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 0.5, "beta_fast": 16.0, "beta_slow": 2.0}}
    | {"first_k_dense_replace": 0, "norm_topk_prob": False, "tie_word_embeddings": True},
    "deepseek_v2": V2 | sizes(4, None, 20, 8, 8, 12) | {"n_shared_experts": 2},
    "deepseek_v2_groups": V2
    | sizes(4, 10, 14, 6, 4, 10)
    | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "n_routed_experts": 12}
    | {"num_experts_per_tok": 3, "routed_scaling_factor": 2.5, "attention_bias": True}
    | {"rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}},
    "deepseek_v2_odd": V2
    | sizes(2, 9, 6, 4, 2, 11)
    | {"first_k_dense_replace": 0, "num_experts_per_tok": 1, "tie_word_embeddings": True}
    | {"norm_topk_prob": True, "rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 0.5}},
    "glm4_moe_lite": LITE | sizes(4, 12, 20, 10, 6, 14),
    "glm_moe_dsa": DSA | sizes(4, 12, 20, 10, 6, 14) | {"num_hidden_layers": 3, "num_experts_per_tok": 4},
    "glm_moe_dsa_shared": DSA
    | sizes(5, 9, 14, 6, 4, 10)
    | {"mlp_layer_types": ["sparse", "dense", "sparse"], "indexer_types": ["full", "shared", "full"]}
    | {"num_hidden_layers": 3, "n_group": 2, "topk_group": 1, "attention_bias": True},
    "glm4_moe_lite_mixed": LITE
    | sizes(5, None, 14, 6, 4, 10)
    | {"mlp_layer_types": ["sparse", "dense", "sparse"], "n_group": 2, "topk_group": 1}
    | {"rope_interleave": False, "tie_word_embeddings": True, "attention_bias": True},
}
DTYPES = {"deepseek_v3": "bfloat16", "deepseek_v2_groups": "bfloat16", "deepseek_v2_odd": "float16"}
DTYPES |= {"glm4_moe_lite": "bfloat16", "glm_moe_dsa": "bfloat16"}
SHARDS = {"deepseek_v3_odd": 3, "deepseek_v2": 2, "glm4_moe_lite_mixed": 2}

if __name__ == "__main__":
    write_references(LATENT, cases_of(CASES, DTYPES, SHARDS))
