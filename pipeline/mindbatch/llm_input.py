"""What a program gives to LLM: prompts of every kind, and parameters for all or for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mindbatch.decoding import DecodingParams
from mindbatch.errors import ConfigError

PromptInput = str | Sequence[int] | Sequence[Mapping[str, Any]]
Params = DecodingParams | Sequence[DecodingParams] | None


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


def params_for_each(count: int, params: Params) -> Sequence[DecodingParams]:
    """The parameters of each of `count` prompts.

    Raises:
        ConfigError: they are something else, or not as many as the prompts.
    """
    if params is None:
        return [DecodingParams()] * count
    if isinstance(params, DecodingParams):
        return [params] * count
    if not isinstance(params, Sequence) or not all(isinstance(each, DecodingParams) for each in params):
        raise ConfigError("params: must be a DecodingParams, or a list with one for each prompt")
    if len(params) != count:
        raise ConfigError(
            f"params: {len(params)} given for {count} prompts; give one for all or one for each"
        )
    return params
