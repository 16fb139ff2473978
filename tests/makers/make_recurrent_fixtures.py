"""Writes tests/numerics/fixtures/recurrent.npz: tiny models with layers that keep a state of each sequence.

Recorded with transformers 5.24, which has all of their classes. See make_model_fixtures.py.
"""

from __future__ import annotations

from typing import Any

from model_folders import RECURRENT

from make_model_fixtures import GROUPED, cases_of, write_references

FULL, LINEAR = "full_attention", "linear_attention"
LFM2 = {key: value for key, value in GROUPED.items() if key != "rms_norm_eps"} | {
    "model_type": "lfm2",
    "num_hidden_layers": 4,
    "norm_eps": 1e-5,
    "full_attn_idxs": [1, 3],
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.3,
    "pad_token_id": None,
}
QWEN3_5 = GROUPED | {
    "model_type": "qwen3_5_text",
    "full_attention_interval": 2,
    "head_dim": 16,
    "linear_key_head_dim": 28,
    "linear_value_head_dim": 20,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
EXPERTS = {
    "num_experts": 5,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
}
NEXT = QWEN3_5 | EXPERTS | {"model_type": "qwen3_next"}
QUARTER = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
CASES: dict[str, dict[str, Any]] = {
    "lfm2": LFM2,
    "lfm2_biased": LFM2
    | {"conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False, "num_key_value_heads": 1}
    | {"layer_types": [FULL, "conv", FULL, "conv"], "tie_word_embeddings": False, "intermediate_size": 44},
    "qwen3_next": NEXT | {"rope_parameters": QUARTER},
    "qwen3_next_mixed": NEXT
    | {"linear_num_value_heads": 2, "linear_conv_kernel_dim": 3, "mlp_only_layers": [1], "head_dim": 12}
    | {
        "layer_types": [FULL, LINEAR, LINEAR],
        "num_hidden_layers": 3,
        "attention_bias": True,
        "tie_word_embeddings": True,
    }
    | {"rope_parameters": QUARTER | {"partial_rotary_factor": 0.5}, "norm_topk_prob": False},
    "qwen3_5_text": QWEN3_5
    | {"rope_parameters": QUARTER | {"mrope_section": [1, 1, 0], "mrope_interleaved": True}},
    "qwen3_5_text_kinds": QWEN3_5
    | {
        "layer_types": [LINEAR, FULL, LINEAR],
        "num_hidden_layers": 3,
        "linear_num_key_heads": 1,
        "linear_value_head_dim": 16,
    }
    | {"num_key_value_heads": 1, "tie_word_embeddings": True, "intermediate_size": 44},
    "qwen3_5_moe_text": QWEN3_5
    | EXPERTS
    | {"model_type": "qwen3_5_moe_text", "rope_parameters": QUARTER, "num_experts": 6},
}
DTYPES = {"lfm2": "bfloat16", "qwen3_next": "bfloat16", "qwen3_5_text_kinds": "float16"}
SHARDS = {"qwen3_next_mixed": 3, "lfm2_biased": 2}

if __name__ == "__main__":
    write_references(RECURRENT, cases_of(CASES, DTYPES, SHARDS))
