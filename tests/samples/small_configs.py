"""The least that a config.json must say, for each shape of model there is."""

from typing import Any

from mindbatch.model_spec.registry import MODEL_TYPES, defaults

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
CHATGLM: dict[str, Any] = {
    "model_type": "chatglm",
    "padded_vocab_size": 100,
    "hidden_size": 32,
    "ffn_hidden_size": 48,
    "num_layers": 2,
    "num_attention_heads": 4,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "kv_channels": 8,
}
GPT2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4}
_WIDTH: dict[str, Any] = {"vocab_size": 100, "hidden_size": 32}
_LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4}
_T5: dict[str, Any] = {
    "vocab_size": 100,
    "d_model": 32,
    "d_kv": 6,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
}
BETWEEN: dict[str, dict[str, Any]] = {
    "bloom": _WIDTH | {"n_layer": 2, "n_head": 4},
    "chatglm_6b": _WIDTH
    | {"inner_hidden_size": 48, "num_layers": 2, "num_attention_heads": 4, "position_encoding_2d": True}
    | {"bos_token_id": 99, "gmask_token_id": 98, "mask_token_id": 97},
    "falcon": _WIDTH | _LAYERS | {"new_decoder_architecture": True, "num_kv_heads": 4},
    "gpt_neox": _WIDTH | _LAYERS | {"intermediate_size": 48, "rotary_pct": 0.5},
    "gptj": {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
    "mt5": _T5,
    "opt": _WIDTH | _LAYERS | {"ffn_dim": 48},
    "pangu_alpha": _WIDTH | {"num_layers": 2, "num_heads": 4, "intermediate_size": 48},
    "t5": _T5,
    "telechat": _WIDTH
    | {"ffn_hidden_size": 48, "n_layer": 2, "n_head": 4, "training_seqlen": 32, "base_seqlen": 32},
}
"""By type, of those that came between GPT-2 and Llama."""
_LATENT: dict[str, Any] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_DELTA: dict[str, Any] = {
    "full_attention_interval": 2,
    "head_dim": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 4,
}
_COUNTS: dict[str, Any] = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k"), 2),
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 24,
}
_OTHERS: dict[str, dict[str, Any]] = {
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "gemma4_text": {
        "num_key_value_heads": 4,
        "head_dim": 8,
        "global_head_dim": 12,
        "sliding_window": 8,
        "hidden_size_per_layer_input": 6,
        "vocab_size_per_layer_input": 101,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
    },
    "glm4_moe_lite": _LATENT,
    "glm_moe_dsa": _LATENT,
    "lfm2": {"full_attn_idxs": [1], "num_key_value_heads": 4, "block_multiple_of": 16},
    "qwen3_5_moe_text": _DELTA,
    "qwen3_5_text": _DELTA,
    "qwen3_next": _DELTA,
    "gpt_oss": {"num_key_value_heads": 4, "sliding_window": 8},
    "llama4_text": {
        "num_key_value_heads": 4,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 40,
        "head_dim": 8,
        "attention_chunk_size": 8,
    },
    "minimax_m2": {"head_dim": 16},
}
EXPERTS: dict[str, dict[str, Any]] = {
    model_type: {key: size for key, size in _COUNTS.items() if key in defaults(model_type)}
    | _OTHERS.get(model_type, {})
    for model_type in MODEL_TYPES
    if model_type != "minimind"  # whose experts are those of two generations
}
"""What the types of mixtures of experts, and those with recurrent layers, say besides LLAMA."""
RECURRENT = frozenset(("lfm2", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"))
"""Types with layers that keep a state of each sequence, which a CPU alone computes."""
