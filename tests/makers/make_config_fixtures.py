"""Records what transformers' configuration classes take for absent keys, for tests/unit/models.

Refreshes the package's own defaults, too: which keys they have is for the models' files to say.

    PYTHON tests/makers make_config_fixtures

minimind, chatglm and pangu_alpha are not in transformers: theirs are facts read from the published classes
(MiniMind's model_minimind.py of 2025, configuration_chatglm.py of chatglm3-6b and of chatglm-6b,
configuration_gptpangu.py of pangu_2_6B).
"""

import inspect
import json
import textwrap
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING

from mindbatch.model_spec.registry import MODEL_TYPES

TARGET = Path(__file__).parents[1] / "unit/config_json/config_defaults.json"
SHIPPED = Path(__file__).parents[2] / "pipeline/mindbatch/config_json/config_keys.json"
OWN: dict[str, dict[str, Any]] = {
    "minimind": {
        "hidden_act": "silu",
        "hidden_size": 512,
        "intermediate_size": None,
        "max_position_embeddings": 32768,
        "num_attention_heads": 8,
        "num_hidden_layers": 8,
        "num_key_value_heads": 2,
        "vocab_size": 6400,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "inference_rope_scaling": False,
        "use_moe": False,
        "num_experts_per_tok": 2,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "scoring_func": "softmax",
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
    },
    "chatglm": {
        "num_layers": 28,
        "padded_vocab_size": 65024,
        "hidden_size": 4096,
        "ffn_hidden_size": 13696,
        "kv_channels": 128,
        "num_attention_heads": 32,
        "seq_length": 2048,
        "layernorm_epsilon": 1e-05,
        "rmsnorm": True,
        "post_layer_norm": True,
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "multi_query_attention": False,
        "multi_query_group_num": 1,
        "rope_ratio": 1.0,
        "pre_seq_len": None,
        "prefix_projection": False,
    },
    "pangu_alpha": {
        "vocab_size": 40000,
        "max_position_embeddings": 1024,
        "hidden_size": 2560,
        "intermediate_size": None,
        "num_layers": 32,
        "num_heads": 32,
        "activation_function": "gelu",
        "layer_norm_epsilon": 1e-05,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
    },
    "chatglm_6b": {
        "vocab_size": 130528,
        "hidden_size": 4096,
        "num_layers": 28,
        "num_attention_heads": 32,
        "layernorm_epsilon": 1e-05,
        "bos_token_id": 130004,
        "mask_token_id": 130000,
        "gmask_token_id": 130001,
        "max_sequence_length": 2048,
        "inner_hidden_size": 16384,
        "position_encoding_2d": True,
        "quantization_bit": 0,
        "pre_seq_len": None,
        "prefix_projection": False,
        "tie_word_embeddings": True,
    },
}

# Classes of transformers 5.24, with the keys that config.json had before.
NEWER: dict[str, dict[str, Any]] = {
    "glm4_moe_lite": {
        "vocab_size": 154880,
        "hidden_size": 2048,
        "intermediate_size": 10240,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 47,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "n_shared_experts": 1,
        "n_routed_experts": 64,
        "routed_scaling_factor": 1.8,
        "kv_lora_rank": 512,
        "q_lora_rank": 768,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "qk_nope_head_dim": 192,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "max_position_embeddings": 202752,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "rope_interleave": True,
        "attention_bias": False,
        "rope_theta": 10000.0,
        "first_k_dense_replace": 1,
    },
    "minimax_m2": {
        "vocab_size": 200064,
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "num_hidden_layers": 62,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 196608,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "num_experts_per_tok": 8,
        "num_local_experts": 256,
        "rope_theta": 5000000.0,
    },
}

NEWER["glm_moe_dsa"] = NEWER["glm4_moe_lite"] | {
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 256,
    "routed_scaling_factor": 2.5,
    "q_lora_rank": 2048,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "mlp_bias": False,
}
NEWER["gemma4_text"] = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "sliding_window": 512,
    "final_logit_softcapping": None,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "global_head_dim": 512,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "partial_rotary_factor": 0.25,
    "rope_scaling": {"rope_type": "proportional"},
}
NEWER["llama4_text"] = {
    "vocab_size": 202048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "moe_layers": None,
    "interleave_moe_layer_step": 1,
    "use_qk_norm": True,
    "rope_theta": 500000.0,
    "no_rope_layers": None,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "attn_scale": 0.1,
    "attention_bias": False,
}
_DELTA: dict[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "vocab_size": 248320,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "rope_theta": 10000.0,
    "num_attention_heads": 16,
}
NEWER["qwen3_5_text"] = _DELTA | {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
}
NEWER["qwen3_5_moe_text"] = _DELTA | {
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 8,
    "num_experts": 256,
}

LATER: dict[str, dict[str, Any]] = {
    "gpt_oss": {"attention_bias": True, "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    "qwen3_next": {"full_attention_interval": 4},
}
"""Keys that classes of 5.24 have and those of 4.57 have not, or do not name, with their defaults."""
UNAVAILABLE = ("telechat", "telechat3")
"""Types whose classes are in no package that installs."""


def defaults_of(config_class: type[transformers.PretrainedConfig]) -> dict[str, Any]:
    """What the constructor takes for each key it names, and whether the embeddings are tied."""
    parameters = inspect.signature(config_class.__init__).parameters.values()
    named = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}
    return {"tie_word_embeddings": config_class().tie_word_embeddings} | named


def refreshed(shipped: dict[str, dict[str, Any]], recorded: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The defaults of the keys that models read, as the classes have them now."""
    return {
        model_type: {key: recorded.get(model_type, {}).get(key, value) for key, value in defaults.items()}
        for model_type, defaults in shipped.items()
    }


def compact(tables: dict[str, dict[str, Any]]) -> str:
    """JSON with a few keys in a line, so that a changed one shows."""
    texts = []
    for name in sorted(tables):
        unbroken = {key.replace(" ", "\xa0"): value for key, value in tables[name].items()}
        keys = json.dumps(unbroken, sort_keys=True, ensure_ascii=False)[1:-1].replace(": ", ":\xa0")
        lines = textwrap.wrap(keys, 104, break_long_words=False, break_on_hyphens=False)
        texts.append(f'  "{name}": {{\n   ' + "\n   ".join(lines).replace("\xa0", " ") + "\n  }")
    return "{\n" + ",\n".join(texts) + "\n }"


def main() -> None:
    """Writes the files."""
    others = OWN | NEWER
    recorded = {
        name: defaults_of(CONFIG_MAPPING[name]) | LATER.get(name, {})
        for name in MODEL_TYPES
        if name not in others and name not in UNAVAILABLE
    }
    recorded |= others
    content = {"transformers": transformers.__version__, "defaults": recorded}
    TARGET.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    shipped = json.loads(SHIPPED.read_text())
    shipped["defaults"] = refreshed(shipped["defaults"], recorded)
    parts = (f' "{name}": {compact(tables)}' for name, tables in sorted(shipped.items()))
    SHIPPED.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
