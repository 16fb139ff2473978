"""Hugging Face folders with random weights, for benchmarks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.model_spec.registry import describe, tensor_specs

Config = Mapping[str, Any]
"""What a config.json says."""

GPT2_124M = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "tie_word_embeddings": True,
}
QWEN2_5_0_5B = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
LFM2_350M = {
    "model_type": "lfm2",
    "architectures": ["Lfm2ForCausalLM"],
    "vocab_size": 65536,
    "hidden_size": 1024,
    "block_ff_dim": 6656,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "conv_L_cache": 3,
    "conv_bias": False,
    "max_position_embeddings": 128000,
    "bos_token_id": 1,
    "eos_token_id": 7,
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
QWEN3_5_0_8B = {
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "vocab_size": 60000,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": True,
}
"""Qwen3.5 0.8B, with a vocabulary of 60,000 instead of 248,320."""
GEMMA4_LAYERS = {
    "model_type": "gemma4_text",
    "architectures": ["Gemma4ForCausalLM"],
    "vocab_size": 32768,
    "vocab_size_per_layer_input": 32768,
    "hidden_size": 1536,
    "hidden_size_per_layer_input": 256,
    "intermediate_size": 6144,
    "num_hidden_layers": 10,
    "num_kv_shared_layers": 5,
    "layer_types": ["sliding_attention"] * 4
    + ["full_attention"]
    + ["sliding_attention"] * 4
    + ["full_attention"],
    "sliding_window": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "global_head_dim": 512,
    "use_double_wide_mlp": True,
    "max_position_embeddings": 4096,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "rms_norm_eps": 1e-6,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
"""10 of the 35 layers of Gemma 4 E2B, and an eighth of its vocabulary."""
GLM5_SMALL = {
    "model_type": "glm_moe_dsa",
    "architectures": ["GlmMoeDsaForCausalLM"],
    "vocab_size": 32768,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 10,
    "first_k_dense_replace": 2,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "n_group": 1,
    "topk_group": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 512,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_topk": 2048,
    "index_n_heads": 8,
    "index_head_dim": 128,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "tie_word_embeddings": False,
}
"""GLM-5's kinds of layers and heads, an eighth of them and a sixth of its width; 16 of 256 experts."""
HUNYUAN_0_5B = {
    "model_type": "hunyuan_v1_dense",
    "architectures": ["HunYuanDenseV1ForCausalLM"],
    "vocab_size": 120818,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
}
"""A Hunyuan of 0.54B parameters: 0.5B's width; positions are not scaled."""
GPT_OSS_SMALL = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "vocab_size": 32768,
    "hidden_size": 1440,
    "intermediate_size": 1440,
    "num_hidden_layers": 6,
    "num_local_experts": 16,
    "num_experts_per_tok": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "tie_word_embeddings": False,
}
"""gpt-oss 20B at half of its width: a quarter of its layers, half of its experts and heads."""
SHAPES: dict[str, Config] = {
    "gpt2": GPT2_124M,
    "qwen2.5": QWEN2_5_0_5B,
    "lfm2": LFM2_350M,
    "qwen3.5": QWEN3_5_0_8B,
    "gemma4": GEMMA4_LAYERS,
    "glm5": GLM5_SMALL,
    "hunyuan": HUNYUAN_0_5B,
    "gpt_oss": GPT_OSS_SMALL,
}
"""By name: what config.json says."""


def write_random(folder: Path, config: Config = GPT2_124M, seed: int = 0, spread: float = 0.02) -> int:
    """Writes config.json and model.safetensors (float32); returns the bytes of the weights.

    Matrices are normal with a standard deviation of `spread`, vectors of weights ones, biases zeros.
    """
    generator, tensors = np.random.default_rng(seed), {}
    for name, shape in source_shapes(tensor_specs(describe(dict(config)))).items():
        if len(shape) > 1:
            tensors[name] = generator.standard_normal(shape, np.float32) * np.float32(spread)
        else:
            tensors[name] = np.full(shape, 0 if name.endswith("bias") else 1, np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32"}))
    return sum(tensor.nbytes for tensor in tensors.values())
