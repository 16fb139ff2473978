"""Writes tests/numerics/fixtures/glm.npz: tiny models of GLM's types. See make_model_fixtures.py.

chatglm has no class in transformers: its reference is tests/makers/twins.py.
"""

from __future__ import annotations

from typing import Any

from model_folders import GLM

from make_model_fixtures import GROUPED, YARN, cases_of, write_references
from twin_models import twin_case
from twins import ChatglmTwin

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
CHATGLM: dict[str, Any] = {
    "model_type": "chatglm",
    "architectures": ["ChatGLMModel"],
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "apply_query_key_layer_scaling": True,
    "ffn_hidden_size": 56,
    "hidden_size": 32,
    "kv_channels": 8,
    "layernorm_epsilon": 1e-5,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 4,
    "num_layers": 2,
    "original_rope": True,
    "padded_vocab_size": 101,
    "post_layer_norm": True,
    "rmsnorm": True,
    "seq_length": 128,
}
CHATGLM_CASES = {
    "chatglm": CHATGLM,
    "chatglm_biased": CHATGLM | {"add_bias_linear": True, "multi_query_group_num": 1, "rope_ratio": 50},
    "chatglm_odd": CHATGLM
    | {"add_qkv_bias": False, "ffn_hidden_size": 37, "kv_channels": 12, "rope_ratio": 16, "num_layers": 3},
}
DTYPES = {"glm": "bfloat16", "glm4": "float16", "chatglm": "float16"}
SHARDS = {"glm_unbiased": 3, "glm4_unbiased": 2, "chatglm": 2}


if __name__ == "__main__":
    own = {
        name: twin_case(ChatglmTwin, config, DTYPES.get(name, "float32"), SHARDS.get(name, 1))
        for name, config in CHATGLM_CASES.items()
    }
    write_references(GLM, cases_of(CASES, DTYPES, SHARDS) | own)
