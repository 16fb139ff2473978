"""Writes tests/numerics/fixtures/experts.npz: tiny mixtures of experts. See make_model_fixtures.py.

minimax_m2 and llama4_text are recorded with transformers 5.24, and so was qwen2_moe_window.
"""

from __future__ import annotations

from typing import Any

from model_folders import EXPERTS

from make_model_fixtures import GROUPED, LLAMA3, YARN, cases_of, write_references

QWEN3 = GROUPED | {
    "model_type": "qwen3_moe",
    "head_dim": 12,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
}
MIXTRAL = GROUPED | {"model_type": "mixtral", "num_local_experts": 4, "intermediate_size": 24}
QWEN2 = GROUPED | {
    "model_type": "qwen2_moe",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
}
GLM4 = GROUPED | {
    "model_type": "glm4_moe",
    "head_dim": 12,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "pad_token_id": None,
}
GPT_OSS = GROUPED | {
    "model_type": "gpt_oss",
    "hidden_size": 36,
    "intermediate_size": 26,
    "num_attention_heads": 6,
    "head_dim": 10,
    "sliding_window": 7,
    "num_local_experts": 5,
    "num_experts_per_tok": 3,
    "swiglu_limit": 1.0,
    "rope_scaling": YARN | {"truncate": False},
    "pad_token_id": None,
}
HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
ERNIE = GROUPED | {
    "model_type": "ernie4_5_moe",
    "moe_num_experts": 6,
    "moe_k": 2,
    "moe_intermediate_size": 20,
    "moe_num_shared_experts": 1,
}
MINIMAX = MIXTRAL | {"model_type": "minimax_m2", "head_dim": 12, "num_local_experts": 6}
LLAMA4 = GROUPED | {
    "model_type": "llama4_text",
    "num_hidden_layers": 4,
    "head_dim": 12,
    "intermediate_size": 20,
    "intermediate_size_mlp": 44,
    "num_local_experts": 6,
    "attention_chunk_size": 8,
    "floor_scale": 16,
    "attn_scale": 0.5,
    "pad_token_id": None,
}
CASES: dict[str, dict[str, Any]] = {
    "qwen3_moe": QWEN3 | {"norm_topk_prob": True},
    "qwen3_moe_mixed": QWEN3
    | {"decoder_sparse_step": 2, "num_hidden_layers": 5, "mlp_only_layers": [1], "num_experts": 9}
    | {"moe_intermediate_size": 18, "tie_word_embeddings": True, "attention_bias": True},
    "qwen3_moe_window": QWEN3
    | {"use_sliding_window": True, "sliding_window": 7, "num_experts_per_tok": 1, "num_experts": 65},
    "mixtral": MIXTRAL,
    "mixtral_window": MIXTRAL | {"sliding_window": 9, "num_experts_per_tok": 3, "num_key_value_heads": 1},
    "mixtral_one": MIXTRAL
    | {"num_local_experts": 7, "num_experts_per_tok": 1, "intermediate_size": 34, "head_dim": 10}
    | {"tie_word_embeddings": True},
    "qwen2_moe": QWEN2,
    "qwen2_moe_mixed": QWEN2
    | {"decoder_sparse_step": 2, "num_hidden_layers": 5, "mlp_only_layers": [3], "norm_topk_prob": True}
    | {"qkv_bias": False, "tie_word_embeddings": True, "shared_expert_intermediate_size": 34},
    "qwen2_moe_window": QWEN2
    | {"use_sliding_window": True, "sliding_window": 7, "num_experts": 67, "num_experts_per_tok": 1},
    "glm4_moe": GLM4 | {"attention_bias": True, "use_qk_norm": True},
    "glm4_moe_groups": GLM4
    | {"n_routed_experts": 12, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3}
    | {"n_shared_experts": 2, "routed_scaling_factor": 2.5, "num_hidden_layers": 4}
    | {"first_k_dense_replace": 2, "moe_intermediate_size": 18},
    "glm4_moe_whole": GLM4
    | {"partial_rotary_factor": 1.0, "norm_topk_prob": False, "first_k_dense_replace": 0}
    | {"num_key_value_heads": 1, "tie_word_embeddings": True, "n_routed_experts": 65, "head_dim": 10},
    "gpt_oss": GPT_OSS,
    "gpt_oss_plain": GPT_OSS
    | {"attention_bias": False, "num_key_value_heads": 1, "tie_word_embeddings": True, "rope_scaling": None}
    | {"num_hidden_layers": 3, "num_experts_per_tok": 1, "num_local_experts": 9, "swiglu_limit": 7.0},
    "gpt_oss_layers": GPT_OSS
    | {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 19, "num_experts_per_tok": 5}
    | {"rope_scaling": YARN, "intermediate_size": 18},
    "ernie4_5_moe": ERNIE,
    "ernie4_5_moe_some": ERNIE
    | {"num_hidden_layers": 6, "moe_layer_interval": 2, "moe_layer_end_index": 4, "moe_num_experts": 9}
    | {"moe_k": 3, "moe_num_shared_experts": 0, "moe_intermediate_size": 18, "num_key_value_heads": 1}
    | {"tie_word_embeddings": False, "moe_layer_start_index": 0},
    "llama4_text": LLAMA4
    | {"rope_parameters": LLAMA3 | {"rope_theta": 1e4, "low_freq_factor": 1.0, "high_freq_factor": 1.0}},
    "llama4_text_some": LLAMA4
    | {"interleave_moe_layer_step": 2, "num_experts_per_tok": 3, "use_qk_norm": False, "num_local_experts": 9}
    | {"no_rope_layers": [1, 0, 0, 1], "attn_temperature_tuning": False, "num_key_value_heads": 1}
    | {"layer_types": ["full_attention", "chunked_attention", "full_attention", "chunked_attention"]}
    | {"attention_bias": True, "tie_word_embeddings": True, "head_dim": 10, "attention_chunk_size": 11},
    "minimax_m2": MINIMAX | {"rope_parameters": HALF, "num_experts_per_tok": 2},
    "minimax_m2_odd": MINIMAX
    | {"rope_parameters": HALF | {"partial_rotary_factor": 0.4}, "head_dim": 10, "num_key_value_heads": 1}
    | {
        "num_local_experts": 9,
        "num_experts_per_tok": 3,
        "intermediate_size": 18,
        "tie_word_embeddings": True,
    },
}
DTYPES = {
    "qwen2_moe": "float16",
    "glm4_moe": "bfloat16",
    "gpt_oss": "bfloat16",
    "gpt_oss_plain": "float16",
    "qwen3_moe": "bfloat16",
    "mixtral_one": "float16",
    "mixtral": "bfloat16",
    "llama4_text": "bfloat16",
}
SHARDS = {
    "qwen2_moe_mixed": 2,
    "glm4_moe_groups": 3,
    "qwen3_moe_mixed": 3,
    "mixtral_window": 2,
    "gpt_oss_layers": 2,
    "llama4_text_some": 3,
}

if __name__ == "__main__":
    write_references(EXPERTS, cases_of(CASES, DTYPES, SHARDS))
