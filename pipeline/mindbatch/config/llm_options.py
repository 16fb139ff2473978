"""Reads the keywords of `LLM`, which are the keys of the schemas of the model, the runtime and the ranks."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mindbatch.config.hub_models import fetch_models
from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.model_schema import ModelConfig, ParallelConfig, RuntimeConfig
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.other_names import INSTEAD
from mindbatch.config.schema import Key, schema_keys
from mindbatch.io.error_lines import did_you_mean, under_own_names
from mindbatch.io.errors import ConfigError

_KEYS = schema_keys(ModelTaskConfig)
_NO_KEYWORDS = ("checkpoint_name_or_path", "mindformers_yaml")
"""Keys of `model` that are no keywords: the first argument, and a file that only commands read."""

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
    """Adds every keyword to the signature and the docstring of the constructor, for help() and notebooks.

    The keywords come from the schemas: a new key is a keyword without further code.
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
    """Makes a configuration of LLM's arguments, with the paths resolved.

    The names that vLLM has for the same keys are allowed, too, as `model` for the path.

    Raises:
        TypeError: an unknown keyword, a keyword and its alias, or no path.
        ConfigError: values that are not allowed, or paths that do not exist.
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
    errors = config.resolve_paths()
    errors += config.read_values(_KEYS).values()
    if errors := errors or [*config.all_errors(_KEYS)]:
        raise ConfigError(errors)
    if errors := fetch_models(model):
        raise ConfigError(errors)
    return config


def _as_written(key: Key, value: Any) -> Any:
    """Converts a path or an amount of memory to a text, as in a configuration."""
    is_text = key.name == "cache_memory" or (key.is_path and key.type is str and value is not None)
    return str(value) if is_text else value


def own_keywords(arguments: Mapping[str, Any], keywords: Mapping[str, Key]) -> dict[str, Any]:
    """Renames arguments that have an alias. keywords: the keys, by name of the argument.

    Raises:
        TypeError: an argument is given under two names.
    """
    names = {other: name for name, key in keywords.items() for other in key.aliases}
    own, twice = under_own_names(arguments, names)
    if twice:
        raise TypeError("; ".join(twice))
    return own
