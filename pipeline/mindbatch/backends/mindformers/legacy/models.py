"""Which models MindFormers 1.9 runs as legacy ones, and the options that make one for generation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from mindbatch.backends.llama_options import llama_options
from mindbatch.backends.mindformers.families import PROVIDER
from mindbatch.errors import CheckpointError, ConfigError
from mindbatch.models.architecture import Architecture, Rotary

LEGACY_TYPES = ("llama", "mistral")
"""Model types that its LlamaForCausalLM computes, and none of its newer networks."""

NOT_RUN = {
    "chatglm": (
        "the legacy ChatGLM2 of MindFormers 1.9, which has not been made to take steps of this engine; "
        "neither does model.provider=native; `mindbatch reshard` cuts and renames its checkpoints"
    ),
}
"""Types whose networks MindFormers has, and why they are refused."""

_EXACT = 1e-6  # between frequencies that are powers of one base and the same in float32


def refuse_not_run(model_type: object, source: str) -> None:
    """CheckpointError for a model of NOT_RUN."""
    if model_type in NOT_RUN:
        reason = NOT_RUN[str(model_type)]
        raise CheckpointError(f"{source}: model type {model_type!r}: {PROVIDER} does not run it: {reason}")


def generation_options(arch: Architecture, model_parallel: int, *, qkv_concat: bool) -> dict[str, Any]:
    """The keyword arguments of LlamaConfig for a network that generates, but for types and parallel ones.

    Raises:
        ConfigError: see `llama_options`; a vocabulary that the ranks do not divide.
        CheckpointError: rotations that are not those of one base.
    """
    options = llama_options(arch, 1, model_parallel, qkv_concat=qkv_concat)
    if arch.vocab_size % model_parallel:
        raise ConfigError(
            f"parallel.model_parallel={model_parallel}: must divide vocab_size, {arch.vocab_size}, for "
            f"{PROVIDER} and a legacy model"
        )
    return {
        **options,
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
