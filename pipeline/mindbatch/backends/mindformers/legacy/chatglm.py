"""MindFormers' ChatGLM2: which models of `chatglm` it computes, and the options that make it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindbatch.backends.llama_options import SEQUENCE_LENGTH, cut_faults
from mindbatch.errors import CheckpointError, ConfigError
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader

CHATGLM = "chatglm"
MAX_POSITIONS = "max_positions"
"""The option that MindFormers' class has not: of the table of rotations."""

# Of the published configuration class, where it differs from no or null.
_DEFAULTS = {"rmsnorm": True, "original_rope": True, "rope_ratio": 1.0, "quantization_bit": 0}


def chatglm_options(
    arch: Architecture, config: Mapping[str, Any], model_parallel: int, *, qkv_concat: bool
) -> dict[str, Any]:
    """The keyword arguments of mindformers' ChatGLM2Config, but for types and parallel ones.

    qkv_concat: query, key and value are one parameter; gate and up always are. Fused ones are split on each
    rank (enable_high_performance), as `mindbatch reshard` joins them there.

    Raises:
        ConfigError: heads or sizes that the ranks do not divide.
        CheckpointError: keys of config.json that ask for what its network does not compute.
    """
    sizes = {
        "num_attention_heads": arch.heads,
        "multi_query_group_num": arch.kv_heads,
        "ffn_hidden_size": arch.intermediate_size,
    }
    if faults := [*cut_faults(sizes, model_parallel)]:
        raise ConfigError(faults)
    return {
        "batch_size": 1,
        "seq_length": SEQUENCE_LENGTH,
        MAX_POSITIONS: arch.max_positions,
        "num_layers": arch.num_layers,
        "padded_vocab_size": arch.vocab_size,
        "hidden_size": arch.hidden_size,
        "ffn_hidden_size": arch.intermediate_size,
        "kv_channels": arch.head_dim,
        "num_attention_heads": arch.heads,
        "multi_query_group_num": arch.kv_heads,
        "layernorm_epsilon": arch.norm_epsilon,
        "rope_ratio": _rope_ratio(arch, config),
        "add_bias_linear": arch.output_bias,
        "add_qkv_bias": arch.qkv_bias,
        "qkv_concat": qkv_concat,
        "mlp_concat": True,
        "enable_high_performance": True,
    }


def _rope_ratio(arch: Architecture, config: Mapping[str, Any]) -> float:
    """By which the base of rotations is multiplied; all else that its network has one form of is checked."""
    reader = ConfigReader(config, defaults=_DEFAULTS)
    reader.needs("rmsnorm", [True])
    reader.needs("original_rope", [True])
    reader.needs("quantization_bit", [0])
    for key in ("apply_residual_connection_post_layernorm", "fp32_residual_connection"):
        reader.needs(key, [False])
    if arch.tied:
        reader.fault("tie_word_embeddings", "MindFormers' ChatGLM2 has a head of its own; allowed: false")
    ratio = reader.number("rope_ratio")
    if reader.faults:
        raise CheckpointError(reader.faults)
    return ratio
