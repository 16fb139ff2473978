"""Writes tests/numerics/fixtures/glm.npz: tiny models of GLM's types. See make_model_fixtures.py."""

from __future__ import annotations

from typing import Any

from model_folders import GLM

from make_model_fixtures import GROUPED, YARN, cases_of, write_references

HALF = GROUPED | {"head_dim": 12, "partial_rotary_factor": 0.5, "pad_token_id": None}
CASES: dict[str, dict[str, Any]] = {
    "glm": HALF | {"model_type": "glm"},
    "glm_unbiased": HALF
    | {"model_type": "glm", "attention_bias": False, "tie_word_embeddings": True, "intermediate_size": 45},
    "glm_whole": HALF
    | {"model_type": "glm", "partial_rotary_factor": 1.0, "head_dim": 10, "num_key_value_heads": 1},
    "glm4": HALF | {"model_type": "glm4"},
    "glm4_unbiased": HALF
    | {"model_type": "glm4", "attention_bias": False, "num_key_value_heads": 4, "hidden_size": 40},
    "glm4_scaled": HALF
    | {"model_type": "glm4", "rope_scaling": YARN, "intermediate_size": 37, "hidden_act": "gelu"},
}
DTYPES = {"glm": "bfloat16", "glm4": "float16"}
SHARDS = {"glm_unbiased": 3, "glm4_unbiased": 2}

if __name__ == "__main__":
    write_references(GLM, cases_of(CASES, DTYPES, SHARDS))
