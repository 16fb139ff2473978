"""Writes tests/numerics/fixtures/experts.npz: tiny mixtures of experts. See make_model_fixtures.py."""

from __future__ import annotations

from typing import Any

from model_folders import EXPERTS

from make_model_fixtures import GROUPED, cases_of, write_references

QWEN3 = GROUPED | {
    "model_type": "qwen3_moe",
    "head_dim": 12,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
}
MIXTRAL = GROUPED | {"model_type": "mixtral", "num_local_experts": 4, "intermediate_size": 24}
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
}
DTYPES = {"qwen3_moe": "bfloat16", "mixtral_one": "float16", "mixtral": "bfloat16"}
SHARDS = {"qwen3_moe_mixed": 3, "mixtral_window": 2}

if __name__ == "__main__":
    write_references(EXPERTS, cases_of(CASES, DTYPES, SHARDS))
