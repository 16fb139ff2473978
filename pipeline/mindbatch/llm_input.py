"""What a program gives to LLM: prompts of every kind, and parameters for all or for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from mindbatch.decoding import DecodingParams
from mindbatch.errors import ConfigError
from mindbatch.fault_lines import did_you_mean

PromptInput = str | Sequence[int] | Sequence[Mapping[str, Any]]
OneParams = DecodingParams | Mapping[str, Any]
Params = OneParams | Sequence[OneParams] | None

_NAMES = [field.name for field in fields(DecodingParams)]


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
    faults = _unknown("", keywords)
    known = {name: value for name, value in keywords.items() if name in _NAMES}
    if isinstance(params, (list, tuple)):
        if len(params) != count:
            raise ConfigError(
                f"params: {len(params)} given for {count} prompts; give one for all or one for each"
            )
        each = [_made(f"params[{i}]", given, known, faults) for i, given in enumerate(params)]
    else:
        each = [_made("params", {} if params is None else params, known, faults)] * count
    if faults:
        raise ConfigError(faults)
    return each


def _made(place: str, given: Any, keywords: Mapping[str, Any], faults: list[str]) -> DecodingParams:
    """DecodingParams of what was given; faults are added to the list."""
    if isinstance(given, DecodingParams):
        if not keywords:
            return given
        given = {name: getattr(given, name) for name in _NAMES}
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        faults.append(f"{place}: found {kind}; must be a DecodingParams or a dict, for all or each")
    elif unknown := _unknown(f"{place}: ", given):
        faults += unknown
    else:
        try:
            return DecodingParams(**{**given, **keywords})
        except ConfigError as error:
            faults += [fault if place == "params" else f"{place}: {fault}" for fault in error.faults]
    return DecodingParams()


def _unknown(place: str, given: Mapping[str, Any]) -> list[str]:
    """A fault for each name that is no decoding parameter."""
    return [
        f"{place}{name}: unknown decoding parameter{did_you_mean(str(name), _NAMES)}"
        for name in given
        if name not in _NAMES
    ]
