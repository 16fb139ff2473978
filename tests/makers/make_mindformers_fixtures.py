"""Writes tests/numerics/fixtures/mindformers.npz: tiny models of its families by transformers.

Run with a Python that has torch and transformers 4.57; the tests need neither. See make_model_fixtures.py.
"""

from typing import Any

from make_model_fixtures import FIXTURE, GROUPED, YARN, cases_of, write_references
from telechat2_as_llama import telechat2_case

EXPERTS: dict[str, Any] = {"moe_intermediate_size": 20, "num_experts_per_tok": 2}
SHARED = EXPERTS | {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}
LATENT_YARN = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}
CASES: dict[str, dict[str, Any]] = {
    "qwen2": GROUPED,
    "qwen3": GROUPED | {"head_dim": 12, "tie_word_embeddings": True},
    "qwen3_yarn": GROUPED | {"model_type": "qwen3", "head_dim": 16, "rope_scaling": YARN},
    "qwen3_moe": GROUPED | EXPERTS | {"head_dim": 12, "num_experts": 8, "norm_topk_prob": True},
    "glm4": GROUPED | {"head_dim": 16, "attention_bias": True, "pad_token_id": None},
    "glm4_moe": GROUPED
    | SHARED
    | {"head_dim": 16, "use_qk_norm": True, "routed_scaling_factor": 1.5, "pad_token_id": None},
    "deepseek_v3": GROUPED | SHARED | LATENT | {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 4},
    "deepseek_v3_yarn": GROUPED
    | SHARED
    | LATENT
    | {"model_type": "deepseek_v3", "n_group": 1, "topk_group": 1, "rope_scaling": LATENT_YARN},
}
DTYPES = {"qwen3": "bfloat16", "glm4": "float16"}
SHARDS = {"qwen3_moe": 3}


if __name__ == "__main__":
    write_references(
        FIXTURE.with_name("mindformers.npz"), cases_of(CASES, DTYPES, SHARDS) | {"telechat": telechat2_case()}
    )
