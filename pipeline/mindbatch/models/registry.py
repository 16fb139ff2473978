"""Which model types there are, and from a folder's config.json to an architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any

from mindbatch.checkpoint.placement.partition import TensorSpec
from mindbatch.errors import CheckpointError, ConfigError
from mindbatch.layers.architecture import Architecture
from mindbatch.models.config_reader import NONE_IGNORED, ConfigReader, IgnoredKeys

# Each is a module of this package, named after the model_type of Hugging Face configurations.
MODEL_TYPES = ("gpt2", "llama", "minimind", "mistral", "qwen2", "qwen3")
# These are described as far as their checkpoints can be cut and renamed, and no further.
ONLY_CUT = ("chatglm",)


def model_module(model_type: str) -> ModuleType:
    """The module that describes a model type: describe(), tensors(), DEFAULTS, PREFIX, UNUSED_TENSORS."""
    return import_module(f"mindbatch.models.{model_type}")


def unused_tensors(architecture: Architecture) -> tuple[str, ...]:
    """Patterns of the names that a checkpoint of it may hold though nothing reads them."""
    declared: tuple[str, ...] = model_module(architecture.model_type).UNUSED_TENSORS
    return (*declared, "lm_head.weight") if architecture.tied else declared


def describe(
    config: Mapping[str, Any],
    model_type: str = "auto",
    source: str = "config.json",
    *,
    to_be_run: bool = True,
    ignore: IgnoredKeys = NONE_IGNORED,
) -> Architecture:
    """The architecture that a Hugging Face configuration asks for.

    model_type: "auto" takes the configuration's own; another one is for folders whose own type is unknown.
    to_be_run: False lets those in that are ONLY_CUT.
    ignore: keys that the user takes to be without effect.

    Raises:
        CheckpointError: an unknown model type, or every key that is wrong or not understood.
        ConfigError: `model_type` contradicts the configuration.
    """
    own = config.get("model_type")
    chosen = own if model_type == "auto" else model_type
    if chosen is None:
        raise CheckpointError(f"{source}: model_type is missing; allowed: {', '.join(MODEL_TYPES)}")
    if own in MODEL_TYPES and own != chosen:
        raise ConfigError(f"model.type={chosen}: {source} says model_type={own!r}; allowed: auto, {own}")
    _refuse_unknown(chosen, to_be_run)
    module = model_module(chosen)
    reader = ConfigReader(config, source, module.DEFAULTS, ignore)
    architecture: Architecture = module.describe(reader)
    reader.finish()
    return replace(architecture, model_type=str(chosen))


def _refuse_unknown(model_type: object, to_be_run: bool) -> None:
    allowed = MODEL_TYPES if to_be_run else (*MODEL_TYPES, *ONLY_CUT)
    if model_type in allowed:
        return
    near = get_close_matches(str(model_type), allowed, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    if model_type in ONLY_CUT:
        hint = f"; `mindbatch reshard` cuts and renames checkpoints of {model_type}"
    raise CheckpointError(f"model type {model_type!r} is not supported; allowed: {', '.join(allowed)}{hint}")


def tensor_specs(architecture: Architecture) -> list[TensorSpec]:
    """The parameters of an architecture and where they come from."""
    specs: list[TensorSpec] = model_module(architecture.model_type).tensors(architecture)
    return specs
