"""Writes tests/numerics/fixtures/normed.npz: tiny models of types that have norms or positions of their own.

Run with a Python that has torch and transformers 4.57, or 5.24 for gemma4_text; the tests need neither. See
make_model_fixtures.py.
"""

from __future__ import annotations

from typing import Any

from model_folders import NORMED

from make_model_fixtures import GROUPED, LLAMA3, YARN, cases_of, write_references

GEMMA = GROUPED | {"head_dim": 16, "num_hidden_layers": 3}
GEMMA2 = GEMMA | {"model_type": "gemma2", "sliding_window": 7, "query_pre_attn_scalar": 24}
GEMMA3 = GEMMA | {"model_type": "gemma3_text", "sliding_window": 7, "query_pre_attn_scalar": 12}
GEMMA4 = GEMMA | {
    "model_type": "gemma4_text",
    "num_hidden_layers": 4,
    "head_dim": 8,
    "sliding_window": 7,
    "global_head_dim": 12,
    "hidden_size_per_layer_input": 10,
    "vocab_size_per_layer_input": 101,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
OLMO2 = GROUPED | {"model_type": "olmo2", "pad_token_id": None}
OLMO3 = OLMO2 | {"model_type": "olmo3", "num_hidden_layers": 4, "sliding_window": 7}
COHERE = {key: value for key, value in GROUPED.items() if key != "rms_norm_eps"} | {
    "model_type": "cohere",
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.5,
}
COHERE2 = COHERE | {"model_type": "cohere2", "sliding_window": 9, "num_hidden_layers": 4}
SEED_OSS = GROUPED | {"model_type": "seed_oss", "head_dim": 12}
ERNIE = GROUPED | {"model_type": "ernie4_5", "head_dim": 12}
EXAONE = GROUPED | {"model_type": "exaone4", "num_hidden_layers": 4, "sliding_window": 7}
HUNYUAN = GROUPED | {"model_type": "hunyuan_v1_dense", "head_dim": 12}
SMOLLM3 = GROUPED | {"model_type": "smollm3", "pad_token_id": None, "num_hidden_layers": 4}
APERTUS = GROUPED | {"model_type": "apertus", "pad_token_id": None, "hidden_act": "xielu"}
CASES: dict[str, dict[str, Any]] = {
    "gemma2": GEMMA2 | {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0},
    "gemma2_biased": GEMMA2
    | {"attention_bias": True, "num_key_value_heads": 1, "intermediate_size": 37}
    | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": None},
    "gemma2_untied": GEMMA2
    | {"attn_logit_softcapping": None, "final_logit_softcapping": 30.0, "tie_word_embeddings": False}
    | {"head_dim": 10, "hidden_size": 44, "hidden_activation": "gelu"}
    | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    "gemma3": GEMMA3
    | {"sliding_window_pattern": 2, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    | {"rope_theta": 10000.0, "rope_local_base_freq": 100.0},
    "gemma3_yarn": GEMMA3
    | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}
    | {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}
    | {"final_logit_softcapping": 5.0, "num_key_value_heads": 1, "intermediate_size": 33},
    "gemma3_local": GEMMA3
    | {"layer_types": ["sliding_attention"] * 3, "head_dim": 10, "attention_bias": True}
    | {"tie_word_embeddings": False, "sliding_window": 5},
    "gemma4_text": GEMMA4 | {"num_kv_shared_layers": 2, "final_logit_softcapping": 4.0},
    "gemma4_text_wide": GEMMA4
    | {"num_kv_shared_layers": 1, "use_double_wide_mlp": True, "attention_bias": True, "head_dim": 10}
    | {"num_key_value_heads": 1, "intermediate_size": 38, "tie_word_embeddings": False},
    "gemma4_text_values": GEMMA4
    | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0}
    | {"num_key_value_heads": 4, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}
    | {"num_hidden_layers": 3},
    "gemma4_text_experts": GEMMA4
    | {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 4, "moe_intermediate_size": 20}
    | {"hidden_size_per_layer_input": 0, "final_logit_softcapping": 4.0, "hidden_size": 40},
    "olmo2": OLMO2,
    "olmo2_biased": OLMO2
    | {"attention_bias": True, "num_key_value_heads": 1, "intermediate_size": 37, "rope_theta": 5e5}
    | {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "olmo2_odd": OLMO2
    | {"hidden_size": 42, "num_attention_heads": 3, "num_key_value_heads": 3, "tie_word_embeddings": True},
    "cohere": COHERE,
    "cohere_biased": COHERE
    | {"attention_bias": True, "num_key_value_heads": 1, "intermediate_size": 37, "logit_scale": 0.0625},
    "cohere_untied": COHERE
    | {
        "tie_word_embeddings": False,
        "hidden_size": 40,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "cohere2": COHERE2,
    "cohere2_biased": COHERE2
    | {"attention_bias": True, "num_hidden_layers": 3, "sliding_window": 6}
    | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    "cohere2_local": COHERE2
    | {"sliding_window_pattern": 2, "num_key_value_heads": 1, "intermediate_size": 37, "hidden_act": "gelu"},
    "smollm3": SMOLLM3,
    "smollm3_window": SMOLLM3
    | {"use_sliding_window": True, "sliding_window": 7, "no_rope_layer_interval": 2, "rope_theta": 1e4}
    | {"num_key_value_heads": 1, "intermediate_size": 44, "attention_bias": True, "mlp_bias": True},
    "smollm3_mixed": SMOLLM3
    | {"no_rope_layers": [0, 1, 0, 1], "use_sliding_window": True, "sliding_window": 9, "head_dim": 10}
    | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
    | {"tie_word_embeddings": False, "rope_scaling": YARN},
    "olmo3": OLMO3,
    "olmo3_yarn": OLMO3 | {"rope_scaling": YARN, "num_key_value_heads": 1, "attention_bias": True},
    "olmo3_mixed": OLMO3
    | {"layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]}
    | {"sliding_window": 5, "tie_word_embeddings": True, "intermediate_size": 37, "rope_theta": 5e5}
    | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "seed_oss": SEED_OSS,
    "seed_oss_biased": SEED_OSS
    | {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True, "head_dim": 10}
    | {"num_key_value_heads": 1, "intermediate_size": 37, "rope_scaling": YARN},
    "ernie4_5": ERNIE,
    "ernie4_5_biased": ERNIE
    | {"use_bias": True, "num_key_value_heads": 1, "intermediate_size": 37, "tie_word_embeddings": False}
    | {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "exaone4": EXAONE,
    "exaone4_whole": EXAONE
    | {"sliding_window": None, "layer_types": ["full_attention"] * 4, "tie_word_embeddings": True}
    | {"num_key_value_heads": 1, "intermediate_size": 37, "rope_scaling": LLAMA3, "head_dim": 10},
    "exaone4_mixed": EXAONE
    | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
    | {"sliding_window_pattern": "GLLG", "sliding_window": 5, "rope_theta": 1e3},
    "hunyuan_v1_dense": HUNYUAN
    | {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "mscale": 1.0}},
    "hunyuan_v1_dense_biased": HUNYUAN
    | {"attention_bias": True, "num_key_value_heads": 1, "intermediate_size": 37, "head_dim": 8}
    | {"tie_word_embeddings": True},
    "apertus": APERTUS | {"rope_scaling": LLAMA3},
    "apertus_biased": APERTUS
    | {"attention_bias": True, "num_key_value_heads": 1, "intermediate_size": 37, "rope_theta": 1e4}
    | {"tie_word_embeddings": True, "rope_scaling": None},
}
DTYPES = {
    "gemma2": "bfloat16",
    "gemma3": "bfloat16",
    "olmo2": "float16",
    "gemma4_text": "bfloat16",
    "cohere": "bfloat16",
    "cohere2": "float16",
    "smollm3": "bfloat16",
    "olmo3": "bfloat16",
    "seed_oss": "bfloat16",
    "ernie4_5": "bfloat16",
    "exaone4": "float16",
    "hunyuan_v1_dense": "bfloat16",
    "apertus": "bfloat16",  # in which transformers keeps the slopes, whatever the file has
    "apertus_biased": "bfloat16",
}
SHARDS = {
    "gemma2_biased": 2,
    "gemma3_yarn": 3,
    "gemma4_text_wide": 2,
    "olmo2_biased": 2,
    "cohere_untied": 2,
    "cohere2_local": 3,
    "smollm3_mixed": 2,
    "olmo3_yarn": 2,
    "ernie4_5_biased": 2,
    "exaone4_mixed": 3,
    "apertus_biased": 2,
}

if __name__ == "__main__":
    write_references(NORMED, cases_of(CASES, DTYPES, SHARDS))
