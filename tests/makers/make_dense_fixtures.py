"""Writes tests/numerics/fixtures/dense.npz: tiny models of the dense types that are relatives of Llama.

Run with a Python that has torch and transformers 4.57; the tests need neither. See make_model_fixtures.py.
MiniMind-3 has no class in transformers: its folders are loaded as Qwen3, the same network by other names.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from model_folders import DENSE, write_folder
from transformers import PreTrainedModel, Qwen3ForCausalLM

from make_model_fixtures import GROUPED, Case, cases_of, load, write_references

LONG = {"type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [2.0, 3.0, 5.0]}
PHI3 = GROUPED | {"model_type": "phi3", "pad_token_id": None}
STARCODER2 = {key: value for key, value in GROUPED.items() if key != "rms_norm_eps"} | {
    "model_type": "starcoder2",
    "norm_epsilon": 1e-5,
}
GRANITE = GROUPED | {"model_type": "granite", "attention_multiplier": 0.3}
CASES: dict[str, dict[str, Any]] = {
    "phi3": PHI3 | {"num_key_value_heads": 4, "sliding_window": 9},
    "phi3_partial": PHI3
    | {"partial_rotary_factor": 0.5, "tie_word_embeddings": True, "intermediate_size": 37},
    "phi3_long": PHI3
    | {
        "partial_rotary_factor": 0.75,
        "rope_scaling": LONG,
        "original_max_position_embeddings": 128,
        "max_position_embeddings": 4096,
    },
    "starcoder2": STARCODER2,
    "starcoder2_window": STARCODER2
    | {"sliding_window": 7, "num_attention_heads": 2, "num_key_value_heads": 1},
    "starcoder2_unbiased": STARCODER2
    | {"use_bias": False, "tie_word_embeddings": False, "hidden_act": "gelu", "intermediate_size": 45},
    "granite": GRANITE | {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.5},
    "granite_biased": GRANITE
    | {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1, "intermediate_size": 33},
    "granite_tied": GRANITE
    | {"tie_word_embeddings": True, "residual_multiplier": 0.7, "head_dim": 10}
    | {"hidden_size": 40},
}
DTYPES = {"phi3": "bfloat16", "starcoder2": "float16", "granite": "bfloat16"}
SHARDS = {"phi3_partial": 3, "granite_biased": 2}

MINIMIND: dict[str, dict[str, Any]] = {
    "minimind": {"num_key_value_heads": 2},
    "minimind_yarn": {"inference_rope_scaling": True, "max_position_embeddings": 4096},
    "minimind_odd": {"intermediate_size": 47, "head_dim": 10, "tie_word_embeddings": False},
}


def minimind_case(name: str, settings: dict[str, Any]) -> Case:
    """A folder as MiniMind-3 exports it, and how Qwen3 loads it."""
    sizes = (
        GROUPED
        | {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "head_dim": 8, "tie_word_embeddings": True}
        | settings
    )
    network = {key: value for key, value in sizes.items() if key != "inference_rope_scaling"}
    [case] = cases_of({name: network | {"model_type": "qwen3"}}, {"minimind": "float16"}, {}).values()
    yarn = {"beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 2048}
    is_scaled = sizes.get("inference_rope_scaling", False)
    own = {
        "architectures": ["MiniMindForCausalLM"],
        "model_type": "minimind",
        "use_moe": False,
        "dropout": 0.0,
        "flash_attn": True,
        "hidden_act": "silu",
        "inference_rope_scaling": is_scaled,
        "rope_scaling": yarn | {"attention_factor": 1.0, "type": "yarn"} if is_scaled else None,
        "num_experts": 4,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "router_aux_loss_coef": 5e-4,
    }
    description = case.description | {"config": sizes | own}

    def load_as_qwen3(folder: Path) -> PreTrainedModel:
        with tempfile.TemporaryDirectory() as copy:
            write_folder(Path(copy), case.description)
            model = load(Path(copy))
        assert isinstance(model, Qwen3ForCausalLM)
        if is_scaled:
            model.model.rotary_emb.inv_freq = _frequencies(sizes["head_dim"], sizes["rope_theta"])
        return model

    return Case(description, load_as_qwen3)


def _frequencies(size: int, base: float) -> torch.Tensor:
    """MiniMind's YaRN, as precompute_freqs_cis of its model_minimind.py has it."""
    pairs = torch.arange(size // 2)
    plain = base ** (-2.0 * pairs / size)
    ends = [size * math.log(2048 / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1)]
    low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), size // 2 - 1)
    ramp = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
    return (plain * (1 - ramp) + plain * ramp / 16).float()


if __name__ == "__main__":
    own = {name: minimind_case(name, settings) for name, settings in MINIMIND.items()}
    write_references(DENSE, cases_of(CASES, DTYPES, SHARDS) | own)
