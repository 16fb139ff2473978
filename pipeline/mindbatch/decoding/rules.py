"""What each decoding parameter may be, alone and together with others."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from mindbatch.decoding.philox import SEED_LIMIT

MOST_LOGPROBS = 100
"""More than this at each position would make the output mostly log-probabilities."""
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-6, 1e6
"""Bounds of what logits are divided and multiplied by, so that no logit of a sane model overflows float32."""
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Rule:
    """A test on a normalised value and the words that say what passes it."""

    accepts: Callable[[Any], bool]
    allowed: str


def _flag() -> Rule:
    return Rule(lambda value: isinstance(value, bool), "must be true or false")


def _whole(low: int, high: float = math.inf, *, optional: bool = False) -> Rule:
    span = f"at least {low}" if high == math.inf else f"from {low} to {int(high)}"
    allowed = f"must be a whole number, {span}" + (", or null" if optional else "")
    return Rule(
        lambda value: (optional and value is None) or (_is_int(value) and low <= value <= high), allowed
    )


def _number(accepts: Callable[[float], bool], allowed: str) -> Rule:
    return Rule(lambda value: isinstance(value, float) and accepts(value), allowed)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_factor(value: float) -> bool:
    return SMALLEST_FACTOR <= value <= LARGEST_FACTOR


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(text, str) and text for text in value)


def _are_token_ids(value: object) -> bool:
    return value is None or (
        isinstance(value, tuple) and all(_is_int(token) and token >= 0 for token in value)
    )


_RULES = {
    "do_sample": _flag(),
    "temperature": _number(
        lambda t: t == 0 or _is_factor(t), "must be 0 (greedy) or from 0.000001 to 1000000"
    ),
    "top_k": _whole(0),
    "top_p": _number(lambda p: 0 < p <= 1, "must be above 0 and at most 1"),
    "min_p": _number(lambda p: 0 <= p <= 1, "must be from 0 to 1"),
    "repetition_penalty": _number(_is_factor, "must be from 0.000001 to 1000000"),
    "max_length": _whole(1, optional=True),
    "max_new_tokens": _whole(1, optional=True),
    "min_length": _whole(0),
    "min_new_tokens": _whole(0),
    "num_return_sequences": _whole(1),
    "seed": _whole(0, SEED_LIMIT - 1),
    "stop": Rule(_are_texts, "must be a text or a list of texts, none of them empty"),
    "eos_token_id": Rule(
        _are_token_ids, "must be a token id or a list of token ids, each at least 0, or null"
    ),
    "logprobs": _whole(0, MOST_LOGPROBS, optional=True),
    "prompt_logprobs": _whole(0, MOST_LOGPROBS, optional=True),
    "skip_special_tokens": _flag(),
}
_REALS = frozenset({"temperature", "top_p", "min_p", "repetition_penalty"})
_NEUTRAL = {"temperature": (1.0, 0.0), "top_k": (0,), "top_p": (1.0,), "min_p": (0.0,)}
"""Values with which sampling's own parameters do nothing in greedy decoding."""


def normalised(name: str, value: Any) -> Any:
    """The value in the form the rules test; a value that no rule accepts comes back as it is."""
    if isinstance(value, bool):
        return value
    if name == "stop" and isinstance(value, str):
        return (value,)
    if name == "eos_token_id" and isinstance(value, Integral):
        return (int(value),)
    if name in ("stop", "eos_token_id") and isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    if name in _REALS and isinstance(value, Real):
        return _as_float(value)
    return _plain(value)


def field_faults(values: Mapping[str, Any]) -> dict[str, str]:
    """By name, a line for each normalised value that its own rule refuses."""
    return {
        name: f"{_shown(values, name)}: {rule.allowed}"
        for name, rule in _RULES.items()
        if not rule.accepts(values[name])
    }


def combination_faults(values: Mapping[str, Any]) -> list[str]:
    """A line for each set of values, each allowed by its own rule, that cannot go together."""
    return [*_without_effect(values), *_several_greedy(values), *_crossed_lengths(values)]


def _without_effect(values: Mapping[str, Any]) -> list[str]:
    if values["do_sample"]:
        return []
    reason = "has no effect with decoding.do_sample=false; set do_sample=true or remove it"
    return [f"{_shown(values, name)} {reason}" for name, idle in _NEUTRAL.items() if values[name] not in idle]


def _several_greedy(values: Mapping[str, Any]) -> list[str]:
    if values["num_return_sequences"] == 1 or (values["do_sample"] and values["temperature"] != 0):
        return []
    cause = "decoding.do_sample=false" if not values["do_sample"] else "decoding.temperature=0.0"
    shown = _shown(values, "num_return_sequences")
    return [f"{shown} cannot go with {cause}: greedy decoding has one output; sample, or use 1"]


def _crossed_lengths(values: Mapping[str, Any]) -> list[str]:
    pairs = [
        ("min_length", "max_length"),
        ("min_new_tokens", "max_new_tokens"),
        ("min_new_tokens", "max_length"),
    ]
    return [
        f"{_shown(values, low)} is above {_shown(values, high)}; must be at most that"
        for low, high in pairs
        if values[high] is not None and values[low] > values[high]
    ]


def _plain(value: Any) -> Any:
    """NumPy's integers and booleans as Python's."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return int(value) if isinstance(value, Integral) else value


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _shown(values: Mapping[str, Any], name: str) -> str:
    text = repr(values[name])
    if isinstance(values[name], bool) or values[name] is None:
        text = {"True": "true", "False": "false", "None": "null"}[text]
    return f"decoding.{name}={text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + '...'}"
