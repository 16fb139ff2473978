"""Which models MindFormers 1.9 runs as legacy ones, and the options that make one for generation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from mindbatch.backends.llama_options import llama_options
from mindbatch.backends.mindformers.families import PROVIDER
from mindbatch.backends.mindformers.legacy.chatglm import CHATGLM, chatglm_options
from mindbatch.errors import CheckpointError, ConfigError
from mindbatch.models.architecture import Architecture, Rotary

LEGACY_TYPES = ("llama", "mistral", CHATGLM)
"""Model types that its LlamaForCausalLM or its ChatGLM2 computes, and none of its newer networks."""

_EXACT = 1e-6  # between frequencies that are powers of one base and the same in float32


def generation_options(
    arch: Architecture, config: Mapping[str, Any], model_parallel: int, *, qkv_concat: bool
) -> dict[str, Any]:
    """The arguments of `network.legacy_network` for one that generates, but for types and parallel ones.

    config: the content of config.json, which `arch` was described from.

    Raises:
        ConfigError: what its network does not have or cannot cut so.
        CheckpointError: rotations that are not those of one base, or keys that MindFormers does not compute.
    """
    if arch.model_type == CHATGLM:
        options = chatglm_options(arch, config, model_parallel, qkv_concat=qkv_concat)
    else:
        options = _llama_options(arch, model_parallel, qkv_concat=qkv_concat)
    if arch.vocab_size % model_parallel:
        raise ConfigError(
            f"parallel.model_parallel={model_parallel}: must divide vocab_size, {arch.vocab_size}, for "
            f"{PROVIDER} and a legacy model"
        )
    return options


def _llama_options(arch: Architecture, model_parallel: int, *, qkv_concat: bool) -> dict[str, Any]:
    return {
        **llama_options(arch, 1, model_parallel, qkv_concat=qkv_concat),
        "rms_norm_eps": arch.norm_epsilon,
        "max_position_embedding": arch.max_positions,
        "theta": _base(arch),
    }


def _base(arch: Architecture) -> float:
    """The base whose powers the frequencies of rotation are."""
    rotary, size = arch.rotary, arch.head_dim
    assert rotary is not None, "llama_options refuses models without"
    frequencies = rotary.inverse_frequencies
    base = frequencies[-1] ** (-size / (size - 2)) if size > 2 else 1.0
    if list(_unlike(rotary, size, base)):
        raise CheckpointError(
            f"rope_scaling: this {arch.model_type} scales its rotations, which {PROVIDER} does not compute "
            "for a legacy model; allowed: null, or model.provider=native"
        )
    return base


def _unlike(rotary: Rotary, size: int, base: float) -> Iterator[int]:
    """The pairs of a head that are rotated otherwise than by powers of the base; 0 for all of them."""
    if rotary.scale != 1 or 2 * len(rotary.inverse_frequencies) != size:
        yield 0
    for pair, found in enumerate(rotary.inverse_frequencies):
        if not math.isclose(found, base ** (-2 * pair / size), rel_tol=_EXACT):
            yield pair
