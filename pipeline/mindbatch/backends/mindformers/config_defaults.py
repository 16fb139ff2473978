"""What configuration classes take for keys that config.json has not, by family of models."""

_GROUPED = {
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}
QWEN = _GROUPED | {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
QWEN3_MOE = QWEN | {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
}
GLM4 = _GROUPED | {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "partial_rotary_factor": 0.5,
    "attention_bias": False,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-07,
}
_SHARED_EXPERTS = {"norm_topk_prob": True, "n_shared_experts": 1, "num_experts_per_tok": 8}
GLM4_MOE = (
    {key: value for key, value in GLM4.items() if key != "head_dim"}
    | _SHARED_EXPERTS
    | {
        "intermediate_size": 10944,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 128,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    }
)
DEEPSEEK_V3 = (
    _GROUPED
    | _SHARED_EXPERTS
    | {
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 4096,
    }
)
QWEN3 = QWEN | {"head_dim": 128}
TELECHAT3 = QWEN | {"head_dim": 128, "vocab_size": 131072}
TELECHAT2 = {  # of the published configuration class
    "vocab_size": 160256,
    "hidden_size": 4096,
    "ffn_hidden_size": 12288,
    "n_layer": 30,
    "n_head": 32,
    "layer_norm_epsilon": 1e-5,
    "training_seqlen": 8192,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
