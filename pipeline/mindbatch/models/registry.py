"""Registry of model types; from a folder's config.json to an architecture."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.io.fault_lines import nearest
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_forms import text_part
from mindbatch.models.config_reader import NONE_IGNORED, ConfigReader, IgnoredKeys
from mindbatch.models.foreign_models import (
    EXPERTS,
    QUANTIZATION,
    NearestType,
    foreign_model,
    kind_of,
    nearest_type,
)
from mindbatch.models.model_type import ModelType
from mindbatch.models.tensor_spec import TensorSpec

# Each is a module of this package, named after the model_type of Hugging Face configurations.
MODEL_TYPES = (
    "bloom", "chatglm", "chatglm_6b", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "ernie4_5",
    "ernie4_5_moe", "exaone4", "falcon", "gemma", "gemma2", "gemma3_text", "gemma4_text", "glm", "glm4",
    "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt2", "gpt_neox", "gpt_oss", "gptj", "granite",
    "hunyuan_v1_dense", "lfm2", "llama", "llama4_text", "minimax_m2", "minimind", "mistral", "mixtral",
    "mt5", "olmo2", "olmo3", "opt", "pangu_alpha", "phi3", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "seed_oss", "smollm3", "starcoder2",
    "t5", "telechat", "telechat3",
)  # fmt: skip
HEAD = "lm_head.weight"
_QUANTISED_BY = (
    "compressed-tensors (int8, and packed in 4 or 8 bits), GPTQ (4 or 8 bits), AWQ (4 bits) and MXFP4 experts"
)


def declaration(model_type: str) -> ModelType:
    model: ModelType = import_module(f"mindbatch.models.{model_type}").MODEL
    return model


def defaults(model_type: str) -> Mapping[str, Any]:
    """The values that the model's own configuration class takes for absent keys."""
    of_type: Mapping[str, Any] = _config_keys()["defaults"][model_type]
    return of_type


@lru_cache(maxsize=1)
def _config_keys() -> Mapping[str, Any]:
    """config_keys.json, which makers/make_config_fixtures.py writes."""
    content: Mapping[str, Any] = json.loads(Path(__file__).with_name("config_keys.json").read_bytes())
    return content


def reader_of(
    model_type: str, config: Mapping[str, Any], source: str, ignore: IgnoredKeys = NONE_IGNORED
) -> ConfigReader:
    """A reader of a type's configuration, which passes over the keys that are without effect there."""
    reader = ConfigReader(config, source, defaults(model_type), ignore, newer_names(model_type))
    by_reason: Mapping[str, list[str]] = _config_keys()["without_effect"].get(model_type, {})
    reader.ignore(key for keys in by_reason.values() for key in keys)
    return reader


def newer_names(model_type: object) -> Mapping[str, str]:
    """By a key of the type's config.json, the name that newer releases of transformers write."""
    return declaration(str(model_type)).newer_names if model_type in MODEL_TYPES else {}


def unused_tensors(architecture: Architecture) -> tuple[str, ...]:
    """Patterns of the names that a checkpoint of it may hold though nothing reads them."""
    first, count = architecture.num_layers, architecture.next_token_layers
    further = (f"model.layers.{layer}.*" for layer in range(first, first + count))
    # Published files have keys and values of layers, too, that see those of others.
    sees = enumerate(architecture.cache_layers)
    shared = (f"model.layers.{layer}.self_attn.[kv]_*" for layer, source in sees if source != layer)
    own = declaration(architecture.model_type).unused_tensors
    return (*own, *further, *shared, *copies(architecture))


def copies(architecture: Architecture) -> dict[str, str]:
    """By the name of a tensor that a checkpoint may hold besides, the tensor that it must be equal to."""
    return {**declaration(architecture.model_type).copies, **tied_tensors(architecture)}


def tied_tensors(architecture: Architecture) -> dict[str, str]:
    """The tensor of the token embedding by the name of the head's, where a model has them in one."""
    return {HEAD: embedding_source(architecture)} if architecture.tied else {}


def embedding_source(architecture: Architecture) -> str:
    specs = tensor_specs(architecture)
    [source] = (spec.parts[0].source for spec in specs if spec.name == "embedding.weight")
    return source


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
    to_be_run: False lets none in whose weights are quantised.
    ignore: keys that the user takes to be without effect.

    Raises:
        CheckpointError: an unknown model type, or every key that is wrong or not understood.
        ConfigError: `model_type` contradicts the configuration.
    """
    chosen = chosen_type(config, model_type, source, to_be_run=to_be_run, ignore=ignore)
    config = text_part(config)
    declared, reader = declaration(chosen), reader_of(chosen, config, source, ignore)
    architecture = declared.describe(reader)
    if quantised := to_be_run and _is_read_quantised(config, source, ignore):
        reader.ignore([QUANTIZATION])
    reader.finish()
    if quantised and _is_transposed(declared.tree(architecture).parameters()):
        raise CheckpointError(f"{source}: {QUANTIZATION}: quantised weights of {chosen} are not read")
    return replace(architecture, model_type=chosen)


def _is_transposed(specs: Iterable[TensorSpec]) -> bool:
    return any(part.transposed and part.matrix is None for spec in specs for part in spec.parts)


def chosen_type(
    config: Mapping[str, Any],
    model_type: str,
    source: str,
    *,
    to_be_run: bool = True,
    ignore: IgnoredKeys = NONE_IGNORED,
) -> str:
    """The type whose module describes the model: `model_type`, or its own. Arguments, errors: `describe`."""
    config, ignored, instead = text_part(config), ignore.names, ""
    if to_be_run:
        instead = f" (read are {_QUANTISED_BY})"
        ignored += (QUANTIZATION,) if _is_read_quantised(config, source, ignore) else ()
    reason = foreign_model(config, ignored, instead)
    if reason is not None:
        raise CheckpointError(f"{source}: {reason}")
    own = _own_type(config)
    chosen = own if model_type in ("auto", config.get("model_type")) else model_type
    if chosen is None:
        raise CheckpointError(f"{source}: model_type is missing; allowed: {', '.join(MODEL_TYPES)}")
    if own in MODEL_TYPES and own != chosen:
        raise ConfigError(f"model.type={chosen}: {source} says model_type={own!r}; allowed: auto, {own}")
    _refuse_unknown(chosen, config, source)
    return str(chosen)


def _own_type(config: Mapping[str, Any]) -> Any:
    """The type of a configuration's own model_type; ChatGLM-6B's is also that of its successors."""
    own = config.get("model_type")
    if own == "gpt_pangu":
        return "pangu_alpha"
    return "chatglm_6b" if own == "chatglm" and "position_encoding_2d" in config else own


def _is_read_quantised(config: Mapping[str, Any], source: str, ignore: IgnoredKeys) -> bool:
    """True if the matrices are stored as integers, in a way that is read. CheckpointError: not with these."""
    if QUANTIZATION not in config:
        return False
    from mindbatch.models.quantisation import read_layout  # NumPy, which a wrong setting need not load

    return read_layout(config, source, ignore.names) is not None


def _refuse_unknown(model_type: object, config: Mapping[str, Any], source: str) -> None:
    if model_type in MODEL_TYPES:
        return
    kind = kind_of(str(model_type), config)
    hint = ""
    if meant := None if kind else _misspelt(str(model_type)):
        hint = f"; did you mean {meant}?"
    elif kind in (None, EXPERTS) and (near := nearest_supported(config, source)):
        hint = f"; the nearest is {near.brief()}"
    what = f", {kind}," if kind else ""
    raise CheckpointError(
        f"{source}: model type {model_type!r}{what} is not supported; allowed: {', '.join(MODEL_TYPES)}{hint}"
    )


def nearest_supported(config: Mapping[str, Any], source: str) -> NearestType | None:
    """Finds the supported type that understands a configuration best; see `nearest_type`."""
    keys = {model_type: defaults(model_type).keys() for model_type in MODEL_TYPES}
    return nearest_type(config, source, keys, lambda config, source: describe(config, source=source))


def _misspelt(model_type: str) -> str | None:
    """The type that was meant: another number is another architecture."""
    plain = model_type.lower().replace("_", "").replace("-", "")
    near = nearest(plain, MODEL_TYPES, cutoff=0.85)
    return near if near and _digits(near) == _digits(plain) else None


def _digits(text: str) -> str:
    return "".join(filter(str.isdigit, text))


@lru_cache(maxsize=8)
def tensor_specs(architecture: Architecture) -> Sequence[TensorSpec]:
    return tuple(declaration(architecture.model_type).tree(architecture).parameters())
