"""Inputs of LLM: its options, prompts of every kind, and parameters for all or for each."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from mindbatch.config.hub_models import fetch_models
from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.model_schema import ModelConfig, ParallelConfig, RuntimeConfig
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.schema import INSTEAD, Key, own_keywords, schema_keys
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.params import OTHER_NAMES
from mindbatch.decoding.token_kinds import RANDOM
from mindbatch.io.error_lines import did_you_mean, under_own_names
from mindbatch.io.errors import ConfigError

PromptInput = str | Sequence[int] | Sequence[Mapping[str, Any]]
Prompts = PromptInput | Sequence[PromptInput]
ON_ERROR = ("raise", "record")
OneParams = DecodingParams | Mapping[str, Any]
Params = OneParams | Sequence[OneParams] | None

_NAMES = [field.name for field in fields(DecodingParams)]

_KEYS = schema_keys(ModelTaskConfig)
_NO_KEYWORDS = ("checkpoint_name_or_path", "mindformers_yaml")
"""Keys of `model` that are no keywords: the first argument, and what only commands compose."""

_MODEL_KEYWORDS = {
    "model_type" if name == "type" else name: key
    for name, key in schema_keys(ModelConfig).keys.items()
    if name not in _NO_KEYWORDS
}
_RUNTIME_KEYWORDS = schema_keys(RuntimeConfig).keys
_PARALLEL_KEYWORDS = schema_keys(ParallelConfig).keys
_LORA_KEYWORDS = {f"lora_{name}": key for name, key in schema_keys(LoraConfig).keys.items()}
_KEYWORDS = _MODEL_KEYWORDS | _RUNTIME_KEYWORDS | _PARALLEL_KEYWORDS | _LORA_KEYWORDS


def with_keywords(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor, with every keyword in the signature and the text that help() and notebooks show.

    The schemas are the only list of the keywords, so that a new key is one at once, with its default, its
    meaning and its checks.
    """
    lines = [f"    {name}: {key.meaning} ({key.in_help})" for name, key in _KEYWORDS.items()]
    init.__doc__ = "\n".join(["Loads the model of a folder; null stands for None.\n", *lines])
    *first, _ = inspect.signature(init).parameters.values()
    keywords = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=key.default,
            annotation=key.type | None if key.optional else key.type,
        )
        for name, key in _KEYWORDS.items()
    ]
    init.__signature__ = inspect.Signature([*first, *keywords])  # type: ignore[attr-defined]
    return init


def options_of(path: str | Path | None, arguments: Mapping[str, Any]) -> ModelTaskConfig:
    """Reads the model, runtime and process options from LLM's arguments, with the paths resolved.

    Names of vLLM's that mean the same are taken (`config.schema`), `model` for the path among them.

    Raises:
        TypeError: a keyword that there is not, one that is given under two names, or no path.
        ConfigError: values that are not allowed, or paths that lead nowhere.
    """
    arguments = own_keywords(arguments, _KEYWORDS)
    named = arguments.pop("model", None)
    if (path is None) == (named is None):
        raise TypeError("LLM.__init__() takes the model's folder once: LLM(PATH) or LLM(model=PATH)")
    for name in arguments:
        if name not in _KEYWORDS:
            if name in INSTEAD:
                raise TypeError(f"LLM.__init__(): {name}: {INSTEAD[name]}")
            near = did_you_mean(name, _KEYWORDS)
            raise TypeError(f"LLM.__init__() got an unexpected keyword argument {name!r}{near}")

    def values(keywords: Mapping[str, Key]) -> dict[str, Any]:
        return {
            key.name: _as_written(key, arguments[name]) for name, key in keywords.items() if name in arguments
        }

    model = ModelConfig(checkpoint_name_or_path=str(path or named), **values(_MODEL_KEYWORDS))
    runtime = RuntimeConfig(**values(_RUNTIME_KEYWORDS))
    parallel = ParallelConfig(**values(_PARALLEL_KEYWORDS))
    lora = LoraConfig(**values(_LORA_KEYWORDS))
    config = ModelTaskConfig(model=model, runtime=runtime, parallel=parallel, lora=lora)
    errors = config.settle_paths()
    errors += config.read_values(_KEYS).values()
    if errors := errors or [*config.all_errors(_KEYS)]:
        raise ConfigError(errors)
    if errors := fetch_models(model):
        raise ConfigError(errors)
    return config


def _as_written(key: Key, value: Any) -> Any:
    """A path or an amount of memory as a configuration has it: a text."""
    is_text = key.name == "cache_memory" or (key.is_path and key.type is str and value is not None)
    return str(value) if is_text else value


def check_on_error(on_error: str) -> None:
    if on_error not in ON_ERROR:
        raise ConfigError(f"on_error={on_error!r}: must be one of {', '.join(ON_ERROR)}")


def prompt_list(prompts: Any) -> list[Any]:
    """The prompts as a list; one alone may be a string, token ids, or the messages of one conversation.

    Raises:
        ConfigError: they are something else.
    """
    prompts = _plain(prompts)
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, (bytes, Mapping)) or not isinstance(prompts, Iterable):
        raise ConfigError(
            f"prompts: found {type(prompts).__name__}; must be a string, a list of token ids, a list of chat "
            "messages, or a list of these"
        )
    items = [_plain(item) for item in prompts]
    if items and all(isinstance(item, (int, Mapping)) for item in items):
        return [items]
    return [[_plain(part) for part in item] if isinstance(item, (list, tuple)) else item for item in items]


def _plain(value: Any) -> Any:
    """Python's own lists and numbers for NumPy's."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def params_for_each(count: int, params: Params, keywords: Mapping[str, Any]) -> Sequence[DecodingParams]:
    """The parameters of each of `count` prompts; the keywords go before what `params` says.

    Raises:
        ConfigError: they are something else, not as many as the prompts, or hold unknown names.
    """
    keywords, errors = _parameters("", keywords)
    known = {name: value for name, value in keywords.items() if name in _NAMES}
    if isinstance(params, (list, tuple)):
        if len(params) != count:
            raise ConfigError(
                f"params: {len(params)} given for {count} prompts; give one for all or one for each"
            )
        by_prompt = [
            _made(f"params[{i}]", prompt_params, known, errors) for i, prompt_params in enumerate(params)
        ]
    else:
        by_prompt = [_made("params", {} if params is None else params, known, errors)] * count
    if errors:
        raise ConfigError(errors)
    return by_prompt


def adapter_for_each(count: int, adapter: Any) -> Sequence[str | None]:
    """The name of the adapter of each of `count` prompts; whether there is one of that name is found later.

    Raises:
        ConfigError: they are something else, or not as many as the prompts.
    """
    if adapter is None or isinstance(adapter, str):
        return [adapter] * count
    if not isinstance(adapter, (list, tuple)) or not all(isinstance(name, str | None) for name in adapter):
        raise ConfigError(f"adapter={adapter!r}: must be the name of an adapter, None, or a list of these")
    if len(adapter) != count:
        raise ConfigError(
            f"adapter: {len(adapter)} given for {count} prompts; give one for all or one for each"
        )
    return adapter


def _made(place: str, values: Any, keywords: Mapping[str, Any], errors: list[str]) -> DecodingParams:
    if isinstance(values, DecodingParams):
        if not keywords:
            return values
        values = {name: getattr(values, name) for name in _NAMES}
    if not isinstance(values, Mapping):
        kind = type(values).__name__
        errors.append(f"{place}: found {kind}; must be a DecodingParams or a dict, for all or each")
        return DecodingParams()
    values, unfit = _parameters(f"{place}: ", values)
    if unfit:
        errors += unfit
    elif {**values, **keywords}.get("seed") == RANDOM:
        errors.append(
            f"{place}: seed={RANDOM!r}: give DecodingParams(seed={RANDOM!r}, ...), whose seed then says what "
            "was drawn"
        )
    else:
        try:
            return DecodingParams(**{**values, **keywords})
        except ConfigError as error:
            errors += [problem if place == "params" else f"{place}: {problem}" for problem in error.lines]
    return DecodingParams()


def _parameters(place: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Renames parameters to their own names; a line for each given under two names, or that is unknown."""
    renamed, twice = under_own_names(values, OTHER_NAMES)
    unknown = [
        f"{place}{name}: unknown decoding parameter{did_you_mean(str(name), _NAMES)}"
        for name in renamed
        if name not in _NAMES
    ]
    return renamed, [f"{place}decoding.{line}" for line in twice] + unknown
