"""The architectures that are read: a file's metadata as config.json, and the names of its tensors.

Source: llama.cpp's conversion from Hugging Face's folders, and what it computes where a key is absent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mindbatch.checkpoint.error_lines import shown
from mindbatch.checkpoint.formats.gguf_file import GgufFile
from mindbatch.checkpoint.gguf.metadata import Metadata
from mindbatch.checkpoint.gguf.tensors import (
    GEMMA_NORMS,
    GLM_NORMS,
    LATENT,
    PLAIN,
    PLAIN_FUSED,
    SINKS,
    AssembledSource,
    ExpertParts,
    StackPart,
    TensorSource,
    interleaved,
    joined_heads,
    tensor_sources,
)
from mindbatch.io.errors import CheckpointError

Config = dict[str, Any]
Shapes = Mapping[str, tuple[int, ...]]

_ROPE_FACTORS = "rope_freqs.weight"
_LONG_FACTORS = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_FULL_ATTENTION_EVERY = 6  # layers of gemma3
_MAX_LAYERS = 1 << 10
_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}  # of yarn
_SOFTMAX, _SIGMOID = 1, 2  # as files number them
_V3_EXPERTS, _V3_GROUPS = 256, (8, 4)  # which older files of DeepSeek V3 do not say


@dataclass(frozen=True)
class FileModel:
    """A model that a file describes.

    config: the content of config.json. sources: where the file has each tensor.
    """

    config: Config
    sources: Mapping[str, TensorSource | AssembledSource]


ReadTensor = Callable[[str], np.ndarray[Any, np.dtype[np.float32]]]
"""Reads a small tensor of the file."""


def model_of(file: GgufFile, shapes: Shapes, values: ReadTensor) -> FileModel:
    """Describes the model of a file, or of the first of several.

    shapes: of the tensors of all files.

    Raises:
        CheckpointError: every key that is missing, wrong or not understood.
    """
    metadata = Metadata(file.metadata, file.path)
    describe = _ARCHITECTURES.get(metadata.architecture)
    if describe is None:
        allowed = ", ".join(_ARCHITECTURES)
        raise CheckpointError(
            f"{file.path}: general.architecture={shown(metadata.architecture)}: must be one of {allowed}"
        )
    model = describe(metadata, shapes, values)
    metadata.errors += [f"{shown(key)[1:-1]}: is not understood" for key in metadata.unread()]
    metadata.errors += filter(None, (source.error(shapes) for source in model.sources.values()))
    metadata.raise_errors()
    return model


def _sizes(metadata: Metadata, shapes: Shapes) -> Config:
    """The keys that all have in common."""
    metadata.ignore("vocab_size", "rope.scaling.finetuned", "tensor_data_layout")
    return {
        "hidden_size": metadata.count("embedding_length"),
        "num_hidden_layers": metadata.count("block_count", largest=_MAX_LAYERS),
        "intermediate_size": metadata.count("feed_forward_length"),
        "num_attention_heads": metadata.count("attention.head_count"),
        "max_position_embeddings": metadata.count("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.number("rope.freq_base", 10000.0),
        "vocab_size": shapes.get("token_embd.weight", (1,))[0],
        "tie_word_embeddings": "output.weight" not in shapes,
        "torch_dtype": "float32",
    }


def _common(metadata: Metadata, shapes: Shapes) -> Config:
    """The keys of all with heads of one size."""
    config = _sizes(metadata, shapes)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = metadata.count("attention.key_length", max(1, hidden // heads))
    if metadata.count("attention.value_length", head_dim) != head_dim:
        metadata.error(metadata.own("attention.value_length"), f"must be {head_dim}, as that of keys")
    return config | {
        "num_key_value_heads": metadata.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
    }


def _whole_rotary(metadata: Metadata, config: Config) -> None:
    if metadata.count("rope.dimension_count", config["head_dim"]) != config["head_dim"]:
        metadata.error(
            metadata.own("rope.dimension_count"), f"must be {config['head_dim']}, the size of a head"
        )


def _partial_rotary(metadata: Metadata, config: Config) -> float:
    return metadata.count("rope.dimension_count", config["head_dim"]) / int(config["head_dim"])


def _scaling(metadata: Metadata) -> Config | None:
    """The scaling of positions, in transformers' words."""
    kind = metadata.text(metadata.own("rope.scaling.type"), "linear")
    if kind == "none" or not metadata.has("rope.scaling.factor"):
        metadata.ignore("rope.scaling.factor")
        return None
    factor = metadata.number("rope.scaling.factor")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = metadata.count("rope.scaling.original_context_length")
        betas = {key: metadata.number(f"rope.scaling.yarn_{key}", default) for key, default in _BETAS.items()}
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **betas}
    metadata.error(metadata.own("rope.scaling.type"), "must be none, linear or yarn")
    return None


def _llama3_scaling(metadata: Metadata, config: Config, factors: np.ndarray[Any, Any]) -> Config | None:
    """The scaling of Llama 3, of which files have the divisors of frequencies."""
    scaling = {"rope_type": "llama3", "factor": float(factors.max()), **_LLAMA3}
    pairs = np.arange(0, config["head_dim"], 2) / config["head_dim"]
    wavelengths = 2 * np.pi * np.float64(config["rope_theta"]) ** pairs
    original, low, high = _LLAMA3["original_max_position_embeddings"], 1.0, 4.0
    share = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    expected = 1 / ((1 - share) / scaling["factor"] + share)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        metadata.errors.append(
            f"tensor {_ROPE_FACTORS}: is not the scaling of Llama 3.1, which alone is read"
        )
    return scaling


def _llama(metadata: Metadata, shapes: Shapes, values: ReadTensor) -> FileModel:
    config = _common(metadata, shapes) | {"model_type": "llama"}
    _whole_rotary(metadata, config)
    scaling = _scaling(metadata)
    if _ROPE_FACTORS in shapes:
        scaling = _llama3_scaling(metadata, config, values(_ROPE_FACTORS))
        shapes = {name: shape for name, shape in shapes.items() if name != _ROPE_FACTORS}
    config["rope_scaling"] = scaling
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    if not metadata.has("expert_count"):
        config["attention_bias"] = "blk.0.attn_q.bias" in shapes
        return FileModel(config, tensor_sources(shapes, PLAIN, heads=heads))
    config |= {
        "model_type": "mixtral",
        "num_local_experts": metadata.count("expert_count"),
        "num_experts_per_tok": metadata.count("expert_used_count"),
    }
    experts = ExpertParts("block_sparse_moe", "gate", "w1", "w3", "w2")
    return FileModel(config, tensor_sources(shapes, PLAIN, heads=heads, experts=experts))


def _qwen2(metadata: Metadata, shapes: Shapes, values: ReadTensor) -> FileModel:
    config = _common(metadata, shapes) | {"model_type": "qwen2", "rope_scaling": _scaling(metadata)}
    _whole_rotary(metadata, config)
    return FileModel(config, tensor_sources(shapes, PLAIN, heads={}))


def _qwen3(metadata: Metadata, shapes: Shapes, values: ReadTensor) -> FileModel:
    model = _qwen2(metadata, shapes, values)
    return FileModel(model.config | {"model_type": "qwen3"}, model.sources)


def _qwen3_moe(metadata: Metadata, shapes: Shapes, values: ReadTensor) -> FileModel:
    config = _common(metadata, shapes) | {"rope_scaling": _scaling(metadata)}
    _whole_rotary(metadata, config)
    config |= {
        "model_type": "qwen3_moe",
        "num_experts": metadata.count("expert_count"),
        "num_experts_per_tok": metadata.count("expert_used_count"),
        "moe_intermediate_size": metadata.count("expert_feed_forward_length"),
        "norm_topk_prob": metadata.flag(metadata.own("expert_weights_norm"), True),
    }
    metadata.ignore("expert_shared_feed_forward_length")
    experts = ExpertParts("mlp", "gate", "gate_proj", "up_proj", "down_proj")
    return FileModel(config, tensor_sources(shapes, PLAIN, heads={}, experts=experts))


def _gemma(metadata: Metadata, shapes: Shapes) -> Config:
    """The keys that Gemma 2 and 3 have in common; those of 27 billion scale by the width of all heads."""
    config = _common(metadata, shapes)
    _whole_rotary(metadata, config)
    is_largest = config["num_hidden_layers"] in (46, 62)
    per_head = config["hidden_size"] // config["num_attention_heads"]
    keys = ("attn_logit_softcapping", "final_logit_softcapping")
    caps = {key: metadata.number(key) if metadata.has(key) else None for key in keys}
    return config | caps | {"query_pre_attn_scalar": per_head if is_largest else config["head_dim"]}


def _gemma2(metadata: Metadata, shapes: Shapes, values: ReadTensor) -> FileModel:
    config = _gemma(metadata, shapes) | {"model_type": "gemma2"}
    config["sliding_window"] = metadata.count("attention.sliding_window", 4096)
    names = PLAIN | GEMMA_NORMS
    return FileModel(config, tensor_sources(shapes, names, heads={}, has_norms_plus_one=True))


def _gemma3(metadata: Metadata, shapes: Shapes, values: ReadTensor) -> FileModel:
    config = _gemma(metadata, shapes) | {"model_type": "gemma3_text", "rope_scaling": _scaling(metadata)}
    layers, has_window = range(config["num_hidden_layers"]), metadata.has("attention.sliding_window")
    config["rope_local_base_freq"] = metadata.number("rope.freq_base_swa", 10000.0)
    if has_window:
        config["sliding_window"] = metadata.count("attention.sliding_window")
    config["layer_types"] = [
        "sliding_attention" if has_window and (layer + 1) % _FULL_ATTENTION_EVERY else "full_attention"
        for layer in layers
    ]
    names = PLAIN | GEMMA_NORMS
    return FileModel(config, tensor_sources(shapes, names, heads={}, has_norms_plus_one=True))


def _phi3(metadata: Metadata, shapes: Shapes, values: ReadTensor) -> FileModel:
    config = _common(metadata, shapes) | {"model_type": "phi3"}
    config["partial_rotary_factor"] = _partial_rotary(metadata, config)
    window = metadata.own("attention.sliding_window")
    config["sliding_window"] = (
        metadata.count("attention.sliding_window") if metadata.values.get(window) else None
    )
    metadata.ignore("attention.sliding_window", "rope.scaling.attn_factor")
    config["original_max_position_embeddings"] = metadata.count(
        "rope.scaling.original_context_length", config["max_position_embeddings"]
    )
    if all(name in shapes for name in _LONG_FACTORS.values()):
        factors = {key: values(name).astype(float).tolist() for key, name in _LONG_FACTORS.items()}
        config["rope_scaling"] = {"type": "longrope", **factors}
        shapes = {name: shape for name, shape in shapes.items() if name not in _LONG_FACTORS.values()}
    del config["head_dim"]
    return FileModel(config, tensor_sources(shapes, PLAIN_FUSED, heads={}))


def _glm4(metadata: Metadata, shapes: Shapes, values: ReadTensor) -> FileModel:
    config = _common(metadata, shapes) | {"model_type": "glm4"}
    config["partial_rotary_factor"] = _partial_rotary(metadata, config)
    config["attention_bias"] = "blk.0.attn_q.bias" in shapes
    return FileModel(config, tensor_sources(shapes, PLAIN_FUSED | GLM_NORMS, heads={}))


def _gpt_oss(metadata: Metadata, shapes: Shapes, values: ReadTensor) -> FileModel:
    config = _common(metadata, shapes)
    _whole_rotary(metadata, config)
    scaling = _scaling(metadata)
    if scaling is not None and scaling["rope_type"] == "yarn":
        scaling["truncate"] = False
    config |= {
        "model_type": "gpt_oss",
        "rope_scaling": scaling,
        "attention_bias": True,
        "intermediate_size": metadata.count("expert_feed_forward_length"),
        "num_local_experts": metadata.count("expert_count"),
        "num_experts_per_tok": metadata.count("expert_used_count"),
        "sliding_window": metadata.count("attention.sliding_window"),
    }
    experts, inner, hidden = config["num_local_experts"], config["intermediate_size"], config["hidden_size"]
    sources = tensor_sources(shapes, PLAIN | SINKS, heads={})
    for layer in range(config["num_hidden_layers"]):
        stored, own = f"blk.{layer}.ffn_{{}}_exps", f"model.layers.{layer}.mlp.experts"
        for part in ("gate", "up", "down"):
            for end in ("weight", "bias"):
                sources.pop(f"{stored.format(part)}.{end}", None)
        both = [stored.format(part) for part in ("gate", "up")]
        down = stored.format("down")
        sources |= {
            f"{own}.gate_up_proj": AssembledSource(
                (experts, hidden, 2 * inner),
                tuple(StackPart(f"{name}.weight", inner, hidden) for name in both),
                lambda gate, up: interleaved(gate.T, up.T),
            ),
            f"{own}.gate_up_proj_bias": AssembledSource(
                (experts, 2 * inner),
                tuple(StackPart(f"{name}.bias", experts, inner) for name in both),
                interleaved,
            ),
            f"{own}.down_proj": AssembledSource(
                (experts, inner, hidden), (StackPart(f"{down}.weight", hidden, inner),), np.transpose
            ),
            f"{own}.down_proj_bias": TensorSource(f"{down}.bias", (experts, hidden)),
        }
    return FileModel(config, sources)


def _deepseek2(metadata: Metadata, shapes: Shapes, values: ReadTensor) -> FileModel:
    """DeepSeek V2 and V3; the newer files have each head's up-projections apart, those of keys transposed."""
    config = _sizes(metadata, shapes)
    heads, width = config["num_attention_heads"], metadata.count("attention.kv_lora_rank")
    rotated, end = metadata.count("rope.dimension_count"), ""
    if metadata.has("attention.key_length_mla"):
        end = "_mla"
        metadata.ignore("attention.key_length", "attention.value_length")
    metadata.ignore("attention.head_count_kv")
    plain = metadata.count(f"attention.key_length{end}") - rotated
    value = metadata.count(f"attention.value_length{end}")
    is_scored = "exp_probs_b.bias" in {name.partition(".")[2].partition(".")[2] for name in shapes}
    gating = _SIGMOID if is_scored else _SOFTMAX
    if metadata.count("expert_gating_func", gating) != gating:
        metadata.error(metadata.own("expert_gating_func"), f"must be {gating}, with these tensors of experts")
    count = metadata.count("expert_count")
    usual = _V3_GROUPS if is_scored and count == _V3_EXPERTS else (1, 1)
    groups = metadata.count("expert_group_count", usual[0])
    queries = "attention.q_lora_rank"
    scaling = _scaling(metadata)
    if scaling is not None and metadata.has("rope.scaling.yarn_log_multiplier"):
        both = round(metadata.number("rope.scaling.yarn_log_multiplier") / 0.1, 6)
        scaling |= {"mscale": both, "mscale_all_dim": both}
    config |= {
        "model_type": "deepseek_v3" if is_scored else "deepseek_v2",
        "num_key_value_heads": heads,
        "rope_scaling": scaling,
        "q_lora_rank": metadata.count(queries) if metadata.has(queries) else None,
        "kv_lora_rank": width,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": plain,
        "v_head_dim": value,
        "first_k_dense_replace": metadata.whole("leading_dense_block_count"),
        "n_routed_experts": count,
        "num_experts_per_tok": metadata.count("expert_used_count"),
        "n_shared_experts": metadata.count("expert_shared_count"),
        "moe_intermediate_size": metadata.count("expert_feed_forward_length"),
        "routed_scaling_factor": metadata.number("expert_weights_scale", 1.0),
        "norm_topk_prob": metadata.flag(metadata.own("expert_weights_norm"), False),
        "n_group": groups,
        "topk_group": metadata.count("expert_group_used_count", usual[1]),
        "scoring_func": "sigmoid" if is_scored else "softmax",
        "topk_method": "noaux_tc" if is_scored else "group_limited_greedy" if groups > 1 else "greedy",
    }
    experts = ExpertParts("mlp", "gate", "gate_proj", "up_proj", "down_proj")
    sources = tensor_sources(shapes, PLAIN | LATENT, heads={}, experts=experts)
    for layer in range(config["num_hidden_layers"]):
        keys, of_values = f"blk.{layer}.attn_k_b.weight", f"blk.{layer}.attn_v_b.weight"
        if keys in shapes and of_values in shapes:
            del sources[keys], sources[of_values]
            sources[f"model.layers.{layer}.self_attn.kv_b_proj.weight"] = AssembledSource(
                (heads * (plain + value), width),
                (StackPart(keys, heads * width, plain), StackPart(of_values, heads * value, width)),
                partial(joined_heads, heads=heads, width=width),
            )
    return FileModel(config, sources)


_ARCHITECTURES: dict[str, Callable[[Metadata, Shapes, ReadTensor], FileModel]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "glm4": _glm4,
    "gpt-oss": _gpt_oss,
    "deepseek2": _deepseek2,
}
