"""Which model types have MindFormers names."""

from __future__ import annotations

from importlib import import_module

from mindbatch.checkpoint.faults import did_you_mean, shown
from mindbatch.checkpoint.names.dialect import Dialect, Heads, Options
from mindbatch.errors import ConfigError
from mindbatch.models.architecture import Architecture

_MODULES = {
    "chatglm": "chatglm",
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "llama",
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
    """The heads of an architecture."""
    return Heads(arch.heads, arch.kv_heads, arch.head_dim)
