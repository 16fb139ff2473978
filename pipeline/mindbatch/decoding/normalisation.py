"""The one form in which each decoding parameter is kept: hashable, of plain Python types."""

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from mindbatch.decoding.json_text import canonical_schema


def normalised(name: str, value: Any) -> Any:
    """The value in the form that the rules test; one that no rule accepts comes back much as it is."""
    if value is None and name in _NONE_IS_EMPTY:
        return ()
    return _FORMS.get(name, _plain)(value)


def _plain(value: Any) -> Any:
    """NumPy's integers and booleans as Python's."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return int(value) if isinstance(value, Integral) else value


def _real(value: Any) -> Any:
    """A number as a float; infinite where it is too large for one."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _sequence(value: Any) -> Any:
    """A list, tuple or array as a tuple."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return tuple(_plain(item) for item in value) if isinstance(value, list | tuple) else _plain(value)


def _texts(value: Any) -> Any:
    return (value,) if isinstance(value, str) else _sequence(value)


def _ids(value: Any) -> Any:
    """One token id stands for a list of it."""
    value = _sequence(value)
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else value


def _id_sequences(value: Any) -> Any:
    value = _sequence(value)
    return tuple(_sequence(item) for item in value) if isinstance(value, tuple) else value


def _pairs(value: Any) -> Any:
    """A mapping or a list of pairs, as a tuple of pairs whose second part is a float."""
    given = list(value.items()) if isinstance(value, Mapping) else _sequence(value)
    if not isinstance(given, list | tuple):
        return value
    pairs = [_sequence(item) for item in given]
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        return value
    return tuple((_sequence(first), _real(second)) for first, second in pairs)


def _biases_by_id(value: Any) -> Any:
    """Pairs in the order of their tokens, which JSON's mappings have as texts."""
    pairs = _pairs(value)
    if not isinstance(pairs, tuple):
        return pairs
    pairs = tuple((_id_of_text(token), bias) for token, bias in pairs)
    return tuple(sorted(pairs)) if all(isinstance(token, int) for token, _ in pairs) else pairs


def _id_of_text(token: Any) -> Any:
    is_number = isinstance(token, str) and token.isascii() and token.isdigit()
    return int(token) if is_number and len(token) < _LONGEST_ID else token


_LONGEST_ID = 20
"""Digits; converting thousands of them takes long, and Python refuses."""


def _start_and_factor(value: Any) -> Any:
    value = _sequence(value)
    return (value[0], _real(value[1])) if isinstance(value, tuple) and len(value) == 2 else value


def _schema(value: Any) -> Any:
    try:
        return None if value is None else canonical_schema(value)
    except ValueError:
        return value  # its rule says what is wrong


_REALS = (
    "temperature",
    "top_p",
    "min_p",
    "top_h",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "diversity_penalty",
    "length_penalty",
    "penalty_alpha",
    "repetition_penalty",
    "encoder_repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)
_NONE_IS_EMPTY = frozenset(
    {"bad_words_ids", "sequence_bias", "logit_bias", "suppress_tokens", "begin_suppress_tokens"}
)
"""As in transformers, where these are null if they are not given."""
_FORMS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_REALS, _real),
    "stop": _texts,
    "eos_token_id": _ids,
    "forced_eos_token_id": _ids,
    "suppress_tokens": _ids,
    "begin_suppress_tokens": _ids,
    "bad_words_ids": _id_sequences,
    "sequence_bias": _pairs,
    "logit_bias": _biases_by_id,
    "exponential_decay_length_penalty": _start_and_factor,
    "json_schema": _schema,
}
