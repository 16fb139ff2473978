"""Defines tiny models of all types and families with seeded weights, and their logits on a CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.backends.mindformers import families
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.model_spec.registry import MODEL_TYPES, declaration, defaults, describe, tensor_specs
from mindbatch.parallel.topology import WHOLE

FloatArray = npt.NDArray[np.float32]

RECORDED = Path(__file__).parent / "recorded.npz"
"""Logits [tokens, vocabulary] of `runs.logits` by tiny model; record_ascend_check.py writes them."""
_GROUPED: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
_PLAIN: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2, "norm_topk_prob": True}
_SHARED = _EXPERTS | {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1}
_LATENT = {  # sizes of a head's parts as DeepSeek-V3 has them: MindFormers sets one of them itself
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
}
_GROUPED_LATENT = _GROUPED | _SHARED | _LATENT | {"head_dim": 64}
_ENCODER = {
    "vocab_size": 96,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}
_TELECHAT = {
    "vocab_size": 96,
    "hidden_size": 64,
    "ffn_hidden_size": 96,
    "n_layer": 2,
    "n_head": 4,
    "num_key_value_heads": 2,
    "training_seqlen": 64,
    "base_seqlen": 64,
}
_OTHERS: Mapping[str, Mapping[str, Any]] = {
    "bloom": {"vocab_size": 96, "hidden_size": 64, "n_layer": 2, "n_head": 4, "seq_length": 64},
    "chatglm": {
        "padded_vocab_size": 96,
        "hidden_size": 64,
        "ffn_hidden_size": 96,
        "num_layers": 2,
        "num_attention_heads": 4,
        "kv_channels": 16,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "add_qkv_bias": True,
        "seq_length": 64,
    },
    "chatglm_6b": {
        "vocab_size": 96,
        "hidden_size": 64,
        "inner_hidden_size": 96,
        "num_layers": 2,
        "num_attention_heads": 4,
        "position_encoding_2d": True,
        "bos_token_id": 95,
        "gmask_token_id": 94,
        "mask_token_id": 93,
    },
    "cohere2": _GROUPED | {"sliding_window_pattern": 2, "sliding_window": 12},
    "deepseek_v2": _GROUPED_LATENT | {"n_group": 1, "topk_group": 1},
    "deepseek_v3": _GROUPED_LATENT | {"n_group": 2, "topk_group": 2},
    "ernie4_5_moe": _GROUPED | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 48},
    "exaone4": _GROUPED | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12},
    "falcon": _PLAIN | {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 96},
    "gemma2": _GROUPED | {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0, "sliding_window": 12},
    "gemma3_text": _GROUPED | {"sliding_window_pattern": 2, "sliding_window": 12},
    "glm": _GROUPED | {"partial_rotary_factor": 0.5},
    "glm4": _GROUPED | {"partial_rotary_factor": 0.5, "attention_bias": False},
    "glm4_moe": _GROUPED | _SHARED | {"use_qk_norm": True, "n_group": 2, "topk_group": 2},
    "glm4_moe_lite": _GROUPED_LATENT,
    "glm_moe_dsa": _GROUPED_LATENT,
    "gpt2": {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neox": _PLAIN | {"intermediate_size": 96, "rotary_pct": 0.5},
    "gpt_oss": _GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 12},
    "gptj": {
        "vocab_size": 96,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "rotary_dim": 8,
    },
    "granite": _GROUPED
    | {
        "attention_multiplier": 0.2,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "logits_scaling": 2.0,
    },
    "hunyuan_v1_dense": _GROUPED | {"rope_scaling": {"type": "dynamic", "alpha": 100.0}},
    "llama4_text": _GROUPED
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size_mlp": 96, "floor_scale": 4}
    | {"attention_chunk_size": 12, "no_rope_layer_interval": 2, "interleave_moe_layer_step": 2},
    "minimax_m2": _GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 8},
    "mistral": _GROUPED | {"sliding_window": None},
    "mixtral": _GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "mt5": _ENCODER,
    "olmo3": _GROUPED | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12},
    "opt": _PLAIN | {"ffn_dim": 96},
    "pangu_alpha": {
        "vocab_size": 96,
        "hidden_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "max_position_embeddings": 64,
    },
    "qwen2_moe": _GROUPED | _EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 48},
    "qwen3": _GROUPED | {"attention_bias": False},
    "qwen3_moe": _GROUPED | _EXPERTS | {"num_experts": 4},
    "smollm3": _GROUPED | {"no_rope_layer_interval": 2},
    "t5": _ENCODER,
    "telechat": _TELECHAT,
}
"""Configurations of types that have other keys than Llama's, or that shall show something besides."""
_OF_EXPERTS = _EXPERTS | {"num_experts": 4, "num_local_experts": 4}


def tiny_config(model_type: str) -> Mapping[str, Any]:
    """Sizes of a few numbers for the keys that a type has."""
    experts = {key: size for key, size in _OF_EXPERTS.items() if key in defaults(model_type)}
    return _OTHERS.get(model_type, _GROUPED | experts)


CONFIGS = {name: tiny_config(name) for name in MODEL_TYPES if not declaration(name).beyond_ascend}
"""By type of those that Ascend computes."""
_OF_WIDTH = {key: value for key, value in _GROUPED.items() if key != "head_dim"}
MINDFORMERS_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "qwen2": _OF_WIDTH,
    "qwen3": _GROUPED,
    "qwen3_moe": _GROUPED | _EXPERTS | {"num_experts": 4},
    "glm4": _GROUPED | {"attention_bias": True},
    "glm4_moe": _GROUPED | _SHARED | {"use_qk_norm": True},
    "deepseek_v3": _OF_WIDTH | _SHARED | _LATENT | {"n_group": 1, "topk_group": 1},
    "telechat3": _GROUPED,
    "telechat": _TELECHAT,
}
"""Configurations by family of model.provider=mindformers."""
_MINDFORMERS = "mindformers_"
NAMES = (*CONFIGS, *(f"{_MINDFORMERS}{family}" for family in MINDFORMERS_CONFIGS))
"""Names of all tiny models."""


def family_of(name: str) -> str | None:
    """Returns MindFormers' family of a tiny model; None for a native one."""
    return name.removeprefix(_MINDFORMERS) if name.startswith(_MINDFORMERS) else None


def architecture(model_type: str) -> Architecture:
    return describe({"model_type": model_type, **CONFIGS[model_type]})


def mindformers_spec(family: str) -> families.MindFormersSpec:
    return families.describe({"model_type": family, **MINDFORMERS_CONFIGS[family]})


def weights_of(arch: Architecture) -> RandomWeights:
    centre = 0.0 if arch.model_type.startswith("gemma") else 1.0
    return RandomWeights(arch.model_type, source_shapes(tensor_specs(arch)), centre)


@lru_cache(maxsize=1)
def recorded() -> dict[str, FloatArray]:
    with np.load(RECORDED) as arrays:
        return dict(arrays)


class RandomWeights:
    """Tensors that depend on their names only, the same on all machines. See `StoredWeights`.

    norms: the number around which weights of norms lie.
    """

    def __init__(self, name: str, shapes: Mapping[str, tuple[int, ...]], norms: float = 1.0) -> None:
        self.path = Path(f"tiny {name}")
        self.shard, self.stages = WHOLE, 1
        self._shapes = shapes
        self._centre = norms

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def file_name(self, name: str) -> str:
        return "model.safetensors"

    def info(self, name: str) -> StoredTensor:
        return StoredTensor(name, "F32", self._shapes[name])

    def floats(
        self, name: str, *, rows: slice | None = None, columns: slice | None = None, is_widened: bool = True
    ) -> FloatArray:
        values = self._values(name, self._shapes[name])
        if columns is not None:
            values = values.reshape(-1, values.shape[-1])  # a stack, as a matrix
        values = values if rows is None else values[rows]
        return values if columns is None else values[:, columns]

    def _values(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """Draws uniform numbers from a generator's bits, since NumPy may change its distributions."""
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        bits = np.random.PCG64(seed).random_raw(int(np.prod(shape))) >> np.uint64(40)
        uniform = bits.astype(np.float32) / np.float32(1 << 23) - np.float32(1)
        is_norm = len(shape) == 1 and name.endswith("weight")
        spread, centre = (0.3, self._centre) if is_norm else (0.3 if len(shape) == 1 else 0.25, 0.0)
        return (uniform * np.float32(spread) + np.float32(centre)).reshape(shape)
