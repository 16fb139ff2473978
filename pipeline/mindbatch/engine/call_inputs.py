"""Reads the arguments of a call: prompts, parameters and adapters, for all prompts or for each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

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


def check_on_error(on_error: str) -> None:
    if on_error not in ON_ERROR:
        raise ConfigError(f"on_error={on_error!r}: must be one of {', '.join(ON_ERROR)}")


def prompt_list(prompts: Any) -> list[Any]:
    """Returns the prompts as a list; a single one is a text, token ids, or the messages of a conversation.

    Raises:
        ConfigError: the prompts are of another type.
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
    """Converts NumPy's arrays and numbers to Python's lists and numbers."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def params_for_each(count: int, params: Params, keywords: Mapping[str, Any]) -> Sequence[DecodingParams]:
    """Returns the parameters of each of `count` prompts; the keywords override those of `params`.

    Raises:
        ConfigError: `params` has another type, another length than the prompts, or unknown names.
    """
    keywords, errors = _parameters("", keywords)
    known = {name: value for name, value in keywords.items() if name in _NAMES}
    if isinstance(params, (list, tuple)):
        if len(params) != count:
            raise ConfigError(
                f"params: {len(params)} given for {count} prompts; give one for all or one for each"
            )
        by_prompt = [
            _prompt_params(f"params[{i}]", prompt_params, known, errors)
            for i, prompt_params in enumerate(params)
        ]
    else:
        by_prompt = [_prompt_params("params", {} if params is None else params, known, errors)] * count
    if errors:
        raise ConfigError(errors)
    return by_prompt


def adapter_for_each(count: int, adapter: Any) -> Sequence[str | None]:
    """Returns the adapter name of each of `count` prompts; the engine checks that an adapter has that name.

    Raises:
        ConfigError: `adapter` has another type, or another length than the prompts.
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


def _prompt_params(label: str, values: Any, keywords: Mapping[str, Any], errors: list[str]) -> DecodingParams:
    if isinstance(values, DecodingParams):
        if not keywords:
            return values
        values = {name: getattr(values, name) for name in _NAMES}
    if not isinstance(values, Mapping):
        kind = type(values).__name__
        errors.append(f"{label}: found {kind}; must be a DecodingParams or a dict, for all or each")
        return DecodingParams()
    values, invalid = _parameters(f"{label}: ", values)
    if invalid:
        errors += invalid
    elif {**values, **keywords}.get("seed") == RANDOM:
        errors.append(
            f"{label}: seed={RANDOM!r}: give DecodingParams(seed={RANDOM!r}, ...), whose seed then says what "
            "was drawn"
        )
    else:
        try:
            return DecodingParams(**{**values, **keywords})
        except ConfigError as error:
            errors += [problem if label == "params" else f"{label}: {problem}" for problem in error.lines]
    return DecodingParams()


def _parameters(label: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Renames aliases of parameters; returns them and the errors of those set twice or unknown."""
    renamed, twice = under_own_names(values, OTHER_NAMES)
    unknown = [
        f"{label}{name}: unknown decoding parameter{did_you_mean(str(name), _NAMES)}"
        for name in renamed
        if name not in _NAMES
    ]
    return renamed, [f"{label}decoding.{line}" for line in twice] + unknown
