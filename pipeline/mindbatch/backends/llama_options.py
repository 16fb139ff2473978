"""MindFormers' Llama: which models it covers, and the options that make it."""

from collections.abc import Iterator, Mapping
from typing import Any

from mindbatch.io.errors import ConfigError
from mindbatch.models.architecture import Architecture

SEQUENCE_LENGTH = 32
"""Tokens of the network whose layout is worked out: no parameter's shape depends on it."""


def llama_options(
    arch: Architecture, data_parallel: int, model_parallel: int, *, qkv_concat: bool = False
) -> dict[str, Any]:
    """The keyword arguments of mindformers' LlamaConfig, but for the parallel ones.

    qkv_concat: query, key and value are one parameter, and gate and up another.

    Raises:
        ConfigError: what its network does not have or cannot cut so, all of it.
    """
    sizes = {
        "attention heads": arch.heads,
        "key/value heads": arch.kv_heads,
        "intermediate_size": arch.intermediate_size,
    }
    faults = [*_shape_faults(arch), *cut_faults(sizes, model_parallel)]
    if faults:
        raise ConfigError(f"model.provider=mindformers: {fault}" for fault in faults)
    return {
        "batch_size": data_parallel,
        "seq_length": SEQUENCE_LENGTH,
        "hidden_size": arch.hidden_size,
        "num_layers": arch.num_layers,
        "num_heads": arch.heads,
        "n_kv_heads": arch.kv_heads,
        "intermediate_size": arch.intermediate_size,
        "vocab_size": arch.vocab_size,
        "qkv_has_bias": arch.qkv_bias,
        "attn_proj_has_bias": arch.output_bias,
        "qkv_concat": qkv_concat,
        "tie_word_embeddings": arch.tied,
    }


def _shape_faults(arch: Architecture) -> Iterator[str]:
    """Lists what MindFormers' Llama cannot compute: a layout of it would be of another model."""
    name = f"{arch.model_type} model"
    if arch.rotary is None:
        yield f"a {name} is no Llama; allowed are llama, mistral and qwen2"
        return
    if arch.qk_norm:
        yield f"this {name} has norms of queries and keys, which MindFormers' Llama has not"
    if arch.mlp_bias:
        yield f"this {name} has mlp_bias=true, which MindFormers' Llama has not"
    if arch.activation != "silu":
        yield f"this {name} has hidden_act={arch.activation}; MindFormers' Llama has silu"
    if any(arch.windows):
        yield f"this {name} has sliding windows, which MindFormers' Llama has not"
    if arch.heads * arch.head_dim != arch.hidden_size:
        yield (
            f"head_dim={arch.head_dim}: MindFormers' Llama has hidden_size={arch.hidden_size} divided by the "
            f"{arch.heads} heads"
        )


def cut_faults(sizes: Mapping[str, int], ways: int) -> Iterator[str]:
    """A line for each size, by its name, that so many ranks do not divide."""
    for what, size in sizes.items():
        if size % ways:
            yield f"parallel.model_parallel={ways}: must divide {what}, {size}"
