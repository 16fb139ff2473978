"""Model types that have MindFormers names, and the names that the tensors of a checkpoint have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from importlib import import_module

from mindbatch.checkpoint.faults import did_you_mean, shown
from mindbatch.checkpoint.names.dialect import Dialect, Heads, Options, known_names
from mindbatch.io.errors import ConfigError
from mindbatch.models.architecture import Architecture

_MODULES = {
    "chatglm": "chatglm",
    "chatglm_6b": "chatglm_6b",
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "llama",
    "pangu_alpha": "pangu_alpha",
    "qwen2": "llama",
}
NAMED_MODEL_TYPES = tuple(_MODULES)


def dialect(model_type: str, options: Options | None = None) -> Dialect:
    """The declaration of a model type.

    Raises:
        ConfigError: MindFormers' names of the type are not known here.
    """
    if model_type not in _MODULES:
        raise ConfigError(
            f"MindFormers names of model type {shown(model_type)} are not known; allowed: "
            f"{', '.join(_MODULES)}{did_you_mean(model_type, _MODULES)}"
        )
    module = import_module(f"mindbatch.checkpoint.names.{_MODULES[model_type]}")
    declared: Dialect = module.dialect(options or Options())
    return declared


def heads_of(arch: Architecture) -> Heads:
    return Heads(arch.heads, arch.kv_heads, arch.head_dim)


def has_mindformers_names(model_type: str, names: Collection[str]) -> bool:
    """True if more of the names are MindFormers' than Hugging Face's."""
    if model_type not in NAMED_MODEL_TYPES:
        return False
    original = known_names(dialect(model_type), names, is_stored=False)
    stored = [known_names(dialect(model_type, options), names, is_stored=True) for options in _KINDS]
    return max(map(len, stored)) > len(original)


def detected_options(model_type: str, names: Collection[str], options: Options) -> Options:
    """The options with the qkv_concat that fits more of the names, which are MindFormers'."""
    kinds = [replace(options, qkv_concat=is_fused) for is_fused in (False, True)]
    return max(
        kinds, key=lambda concat: len(known_names(dialect(model_type, concat), names, is_stored=True))
    )  # the first of equals


def has_fused_form(model_type: str) -> bool:
    """True if the model type has the option qkv_concat."""
    plain, fused = (dialect(model_type, options) for options in _KINDS)
    return plain != fused


_KINDS = (Options(), Options(qkv_concat=True))
