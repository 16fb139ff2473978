"""The adapter configurations that make_lora_fixtures.py records: settings of PEFT's LoraConfig by case.

A case's name begins with the base, one of the tiny models of tests/numerics/model_folders.py.
"""

from typing import Any

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
BASES = ("gpt2_scaled", "gpt2", "llama", "qwen2", "qwen3", "mistral")

CASES: dict[str, dict[str, Any]] = {
    # GPT-2: weights [inputs, outputs]. PEFT corrects fan_in_fan_out per module, whatever the file says.
    "gpt2_r1": {"r": 1, "lora_alpha": 2, "target_modules": ["c_attn"]},
    "gpt2_all_linear": {"target_modules": "all-linear", "fan_in_fan_out": True},
    "gpt2_suffixes": {"r": 4, "target_modules": ["attn.c_proj", "mlp.c_fc"], "fan_in_fan_out": True},
    "gpt2_regex": {
        "r": 3,
        "target_modules": r"transformer\.h\.1\.(attn\.c_attn|mlp\.c_proj)",
        "fan_in_fan_out": True,
    },
    "gpt2_excluded": {
        "r": 6,
        "target_modules": ["c_attn", "c_fc", "c_proj"],
        "exclude_modules": ["mlp.c_proj"],
        "fan_in_fan_out": True,
    },
    "gpt2_dora": {"r": 4, "target_modules": ["c_attn", "c_proj"], "use_dora": True, "fan_in_fan_out": True},
    "gpt2_bias": {"r": 2, "target_modules": ["c_attn", "c_fc"], "lora_bias": True, "fan_in_fan_out": True},
    "gpt2_patterns": {
        "target_modules": ["c_attn", "c_fc", "c_proj"],
        "rank_pattern": {"c_attn": 3, "h.1.mlp.c_fc": 7},
        "alpha_pattern": {"mlp.c_proj": 5, "c_proj": 20},
        "fan_in_fan_out": True,
    },
    "gpt2_tied_embedding": {"r": 4, "target_modules": ["wte", "c_attn"], "fan_in_fan_out": True},
    "gpt2_scaled_embedding": {"r": 4, "target_modules": ["wte", "c_attn"], "fan_in_fan_out": True},
    "gpt2_scaled_head": {"r": 5, "target_modules": ["c_attn", "lm_head"], "fan_in_fan_out": True},
    "gpt2_scaled_saved_head": {
        "r": 9,
        "target_modules": "all-linear",
        "use_rslora": True,
        "modules_to_save": ["lm_head"],
        "fan_in_fan_out": True,
    },
    "llama_classic": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "llama_all_linear": {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"},
    "llama_regex": {"r": 2, "target_modules": r".*\.self_attn\.(q|k)_proj"},
    "llama_suffixes": {
        "r": 3,
        "target_modules": ["self_attn.o_proj", "mlp.down_proj", "model.layers.0.mlp.up_proj"],
    },
    "llama_excluded_regex": {"r": 4, "target_modules": "all-linear", "exclude_modules": r".*\.mlp\..*"},
    "llama_patterns": {
        "target_modules": "all-linear",
        "rank_pattern": {
            "q_proj": 2,
            "layers.1.self_attn.v_proj": 6,
            r"layers\.\d+\.mlp\.(gate|up)_proj": 5,
        },
        "alpha_pattern": {"v_proj": 3, "layers.1.self_attn.v_proj": 9, "^model.layers.0.mlp.up_proj": 4},
    },
    "llama_rslora_patterns": {
        "r": 4,
        "target_modules": [*ATTENTION, "up_proj"],
        "use_rslora": True,
        "rank_pattern": {"k_proj": 9},
        "alpha_pattern": {"o_proj": 2},
    },
    "llama_second_layer": {"r": 4, "target_modules": ATTENTION, "layers_to_transform": [1]},
    "llama_first_layer": {
        "r": 4,
        "target_modules": ["q_proj", "down_proj"],
        "layers_to_transform": 0,
        "layers_pattern": "layers",
    },
    "llama_head": {"r": 3, "target_modules": ["lm_head"]},
    "llama_embedding_and_head": {"r": 4, "target_modules": ["embed_tokens", "lm_head", "q_proj"]},
    "llama_dora": {"r": 4, "target_modules": "all-linear", "use_dora": True},
    "llama_dora_patterns": {
        "r": 2,
        "target_modules": ["q_proj", "v_proj", "down_proj"],
        "use_dora": True,
        "use_rslora": True,
        "rank_pattern": {"down_proj": 8},
    },
    "llama_dora_embedding": {"r": 4, "target_modules": ["embed_tokens", "q_proj"], "use_dora": True},
    "llama_saved_head": {"r": 4, "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["lm_head"]},
    "llama_saved_both": {"target_modules": ATTENTION, "modules_to_save": ["embed_tokens", "lm_head"]},
    "llama_bias": {"r": 4, "target_modules": ["q_proj", "v_proj"], "lora_bias": True},
    "llama_rank_256": {"r": 256, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "qwen2_all_linear": {"lora_alpha": 16, "target_modules": "all-linear"},
    "qwen2_bias": {"r": 4, "target_modules": ["q_proj", "k_proj", "v_proj"], "lora_bias": True},
    "qwen2_dora": {"r": 3, "target_modules": ATTENTION, "use_dora": True},
    "qwen2_excluded": {
        "r": 64,
        "target_modules": ATTENTION,
        "exclude_modules": ["k_proj"],
        "layers_to_transform": [0],
    },
    "qwen2_saved_both": {
        "r": 4,
        "target_modules": ["up_proj", "down_proj"],
        "use_rslora": True,
        "modules_to_save": ["lm_head", "embed_tokens"],
    },
    "qwen2_combined": {
        "r": 4,
        "target_modules": ["embed_tokens", "q_proj", "k_proj", "gate_proj"],
        "use_rslora": True,
        "rank_pattern": {"gate_proj": 1},
        "alpha_pattern": {"q_proj": 32},
        "modules_to_save": ["lm_head"],
    },
    "qwen3_attention": {"r": 5, "target_modules": ["q_proj", "k_proj", "o_proj"]},
    "qwen3_alphas": {"r": 4, "target_modules": "all-linear", "alpha_pattern": {"mlp.up_proj": 2}},
    "qwen3_dora": {"r": 4, "target_modules": ["self_attn.q_proj", "mlp.down_proj"], "use_dora": True},
    # The head shares the embedding's weight: it keeps the base's, unless weight tying is ensured.
    "qwen3_tied_embedding": {"r": 4, "target_modules": ["embed_tokens", "v_proj"]},
    "qwen3_ensured_embedding": {
        "r": 4,
        "target_modules": ["embed_tokens", "v_proj"],
        "ensure_weight_tying": True,
    },
    "qwen3_saved_embedding": {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "qwen3_saved_ensured": {
        "r": 4,
        "target_modules": ["q_proj"],
        "modules_to_save": ["embed_tokens"],
        "ensure_weight_tying": True,
    },
    "qwen3_saved_both": {
        "r": 4,
        "target_modules": ["v_proj"],
        "modules_to_save": ["embed_tokens", "lm_head"],
    },
    "mistral_mlp": {"r": 2, "lora_alpha": 3, "target_modules": ["gate_proj", "up_proj", "down_proj"]},
    "mistral_regex": {"r": 7, "target_modules": r".*layers\.[01]\..*_proj", "use_rslora": True},
    "mistral_excluded": {
        "r": 4,
        "target_modules": "all-linear",
        "exclude_modules": r".*\.0\.self_attn\.(k|v)_proj",
    },
    "mistral_dora_head": {
        "r": 4,
        "target_modules": ["q_proj", "v_proj"],
        "use_dora": True,
        "modules_to_save": ["lm_head"],
    },
}
AS_SAVED = ("qwen2_all_linear", "gpt2_all_linear")
"""Whose settings are written as PEFT saves them, all-linear spelled out; others as given."""


def base_of(case: str) -> str:
    """The case of model_folders that an adapter is for."""
    return next(base for base in BASES if case.startswith(f"{base}_"))
