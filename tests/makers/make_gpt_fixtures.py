"""Writes tests/numerics/fixtures/gpt.npz: tiny models of the types that came between GPT-2 and Llama.

Run with a Python that has torch and transformers 4.57; the tests need neither. See make_model_fixtures.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from model_folders import GPT
from transformers import AutoModelForCausalLM, PreTrainedModel

from make_model_fixtures import Case, cases_of, write_references

NEOX: dict[str, Any] = {
    "model_type": "gpt_neox",
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 70,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
GPTJ: dict[str, Any] = {
    "model_type": "gptj",
    "vocab_size": 97,
    "n_positions": 128,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "rotary_dim": 4,
}
BLOOM: dict[str, Any] = {
    "model_type": "bloom",
    "vocab_size": 99,
    "hidden_size": 36,
    "n_layer": 2,
    "n_head": 6,
    "pad_token_id": None,
}
FALCON: dict[str, Any] = {
    "model_type": "falcon",
    "vocab_size": 103,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
}
OPT: dict[str, Any] = {
    "model_type": "opt",
    "vocab_size": 95,
    "hidden_size": 36,
    "ffn_dim": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "word_embed_proj_dim": 36,
    "pad_token_id": None,
}
CASES: dict[str, dict[str, Any]] = {
    "gpt_neox": NEOX | {"rotary_pct": 0.5},
    "gpt_neox_whole": NEOX | {"rotary_pct": 1.0, "attention_bias": False, "num_attention_heads": 3},
    "gpt_neox_in_turn": NEOX
    | {"use_parallel_residual": False, "rotary_pct": 0.25, "hidden_size": 64, "hidden_act": "gelu_fast"}
    | {"rotary_emb_base": 500, "num_attention_heads": 2},
    "gptj": GPTJ,
    "gptj_tied": GPTJ | {"tie_word_embeddings": True, "n_inner": 45, "n_head": 2, "rotary_dim": 16},
    "gptj_narrow": GPTJ | {"n_embd": 30, "n_head": 3, "rotary_dim": 2, "activation_function": "gelu"},
    "bloom": BLOOM,
    "bloom_normed": BLOOM | {"apply_residual_connection_post_layernorm": True, "n_head": 4},
    "bloom_untied": BLOOM | {"hidden_size": 35, "n_head": 5, "tie_word_embeddings": False},
    "falcon": FALCON,
    "falcon_second": FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 90},
    "falcon_second_one_norm": FALCON
    | {"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1, "bias": True}
    | {"tie_word_embeddings": False},
    "falcon_rw": FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    "falcon_alibi": FALCON | {"alibi": True, "hidden_size": 35, "num_attention_heads": 5},
    "opt": OPT,
    "opt_untied": OPT | {"tie_word_embeddings": False, "activation_function": "gelu", "ffn_dim": 33},
    "opt_unbiased": OPT | {"enable_bias": False, "num_attention_heads": 3},
    "opt_narrow": OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 20, "num_hidden_layers": 3},
    "opt_after": OPT | {"do_layer_norm_before": False, "enable_bias": False, "tie_word_embeddings": False},
    "opt_wide": OPT | {"word_embed_proj_dim": 44, "ffn_dim": 34},
}
DTYPES = {
    "gpt_neox": "float16",
    "gptj": "float16",
    "bloom": "bfloat16",
    "falcon_second": "bfloat16",
    "opt": "float16",
    "opt_narrow": "float16",
}
SHARDS = {"gpt_neox_whole": 2, "gptj_tied": 3, "bloom_normed": 2, "falcon": 3, "opt_untied": 2}


def load_fused(folder: Path) -> PreTrainedModel:
    """Falcon with ALiBi as it computes by default: its eager attention adds the biases twice (4.57.1)."""
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()


def cases() -> dict[str, Case]:
    """By name."""
    return {
        name: replace(case, load=load_fused) if case.description["config"].get("alibi") else case
        for name, case in cases_of(CASES, DTYPES, SHARDS).items()
    }


if __name__ == "__main__":
    write_references(GPT, cases())
