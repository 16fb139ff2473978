"""What each decoding parameter may be by itself."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from mindbatch import fault_lines
from mindbatch.decoding.grammar import MOST_SHOWN, form_fault
from mindbatch.decoding.json_text import canonical_schema
from mindbatch.decoding.philox import SEED_LIMIT
from mindbatch.fault_lines import as_typed

MOST_LOGPROBS = 100
"""More than this at each position would make the output mostly log-probabilities."""
MOST_SAMPLES, MOST_BEAMS, MOST_DRAFTED = 1 << 16, 1 << 12, 1 << 10
"""Far above what is of use, and far below what the counters of the random generator hold."""
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-6, 1e6
"""Bounds of what logits are divided and multiplied by, so that no logit of a sane model overflows float32."""
MOST_STOPS, MOST_STOP_CHARACTERS = 1 << 10, 1 << 16
"""All of them are looked for after each token."""
LARGEST_EXPONENT = 20
"""Of a length: a million tokens to this power are still a float."""
_NO_CONSTRAINT: dict[str, str | None] = {"regex": None, "json_schema": None}

Rule = Callable[[Any], str | None]
"""What a normalised value must be, in words, if it is not that; None if it is."""


def field_faults(values: Mapping[str, Any]) -> dict[str, str]:
    """By name, a line for each normalised value that its own rule refuses."""
    refused = {name: rule(values[name]) for name, rule in _RULES.items()}
    faults = {name: f"{shown(name, values[name])}: {must}" for name, must in refused.items() if must}
    for name in ("regex", "json_schema"):
        if name not in faults and (fault := form_fault(**_NO_CONSTRAINT | {name: values[name]})):
            faults[name] = fault
    return faults


def shown(name: str, value: Any) -> str:
    """`decoding.name=value` for a fault line, shortened."""
    notation = as_typed if isinstance(value, bool) or value is None else repr
    return f"decoding.{name}={fault_lines.shown(value, MOST_SHOWN, notation)}"


def _rule(accepts: Callable[[Any], bool], must: str) -> Rule:
    return lambda value: None if accepts(value) else must


def _flag() -> Rule:
    return _rule(lambda value: isinstance(value, bool), "must be true or false")


def _whole(low: int, high: float = math.inf, *, optional: bool = False) -> Rule:
    span = f"at least {low}" if high == math.inf else f"from {low} to {int(high)}"
    must = f"must be a whole number, {span}" + (", or null" if optional else "")
    return _rule(
        lambda value: (optional and value is None) or (_is_int(value) and low <= value <= high), must
    )


def _number(accepts: Callable[[float], bool], must: str) -> Rule:
    return _rule(lambda value: isinstance(value, float) and accepts(value), must)


def _span(low: float, high: float) -> Rule:
    return _number(lambda value: low <= value <= high, f"must be from {_figure(low)} to {_figure(high)}")


def _figure(value: float) -> str:
    return f"{value:f}".rstrip("0").rstrip(".")


def _share() -> Rule:
    return _number(lambda value: 0 < value <= 1, "must be above 0 and at most 1")


def _cutoff() -> Rule:
    return _number(lambda value: 0 <= value < 1, "must be at least 0 and below 1")


def _token_ids(*, optional: bool = False) -> Rule:
    must = "must be a token id or a list of token ids, each at least 0" + (", or null" if optional else "")
    return _rule(lambda value: (optional and value is None) or _are_ids(value), must)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_ids(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_id, value))


def _is_sequence(value: object) -> bool:
    return _are_ids(value) and value != ()


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(text, str) and text for text in value)


def _stop_fault(value: Any) -> str | None:
    if not _are_texts(value):
        return "must be a text or a list of texts, none of them empty"
    if len(value) > MOST_STOPS or sum(map(len, value)) > MOST_STOP_CHARACTERS:
        return f"must be at most {MOST_STOPS} texts of {MOST_STOP_CHARACTERS} characters together"
    return None


def _are_biases(value: object, is_key: Callable[[object], bool], most: float) -> bool:
    """Whether `value` is a tuple of (key, bias), no key twice and no bias beyond `most`."""
    if not isinstance(value, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        return False
    if not all(is_key(key) and isinstance(bias, float) and abs(bias) <= most for key, bias in value):
        return False
    return len({key for key, _ in value}) == len(value)


def _is_decay(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    start, factor = value
    return _is_id(start) and isinstance(factor, float) and SMALLEST_FACTOR <= factor <= LARGEST_FACTOR


def _schema_fault(value: Any) -> str | None:
    try:
        if value is not None:
            canonical_schema(value)
    except ValueError as error:
        return str(error)
    return None


_RULES: dict[str, Rule] = {
    "do_sample": _flag(),
    "temperature": _number(
        lambda t: t == 0 or SMALLEST_FACTOR <= t <= LARGEST_FACTOR,
        "must be 0 (greedy) or from 0.000001 to 1000000",
    ),
    "top_k": _whole(0),
    "top_p": _share(),
    "min_p": _span(0, 1),
    "top_h": _share(),
    "typical_p": _share(),
    "epsilon_cutoff": _cutoff(),
    "eta_cutoff": _cutoff(),
    "seed": _whole(0, SEED_LIMIT - 1),
    "num_beams": _whole(1, MOST_BEAMS),
    "num_beam_groups": _whole(1, MOST_BEAMS),
    "diversity_penalty": _span(0, LARGEST_FACTOR),
    "length_penalty": _span(-LARGEST_EXPONENT, LARGEST_EXPONENT),
    "early_stopping": _rule(
        lambda value: isinstance(value, bool) or value == "never", "must be true, false or never"
    ),
    "penalty_alpha": _span(0, 1),
    "best_of": _whole(1, MOST_SAMPLES, optional=True),
    "num_assistant_tokens": _whole(0, MOST_DRAFTED),
    "prompt_lookup_num_tokens": _whole(0, MOST_DRAFTED),
    "max_matching_ngram_size": _whole(1),
    "repetition_penalty": _span(SMALLEST_FACTOR, LARGEST_FACTOR),
    "encoder_repetition_penalty": _span(SMALLEST_FACTOR, LARGEST_FACTOR),
    "frequency_penalty": _span(-2, 2),
    "presence_penalty": _span(-2, 2),
    "no_repeat_ngram_size": _whole(0),
    "encoder_no_repeat_ngram_size": _whole(0),
    "bad_words_ids": _rule(
        lambda value: isinstance(value, tuple) and all(map(_is_sequence, value)),
        "must be a list of lists of token ids, none of them empty",
    ),
    "sequence_bias": _rule(
        lambda value: _are_biases(value, _is_sequence, LARGEST_FACTOR),
        "must be a list of pairs [token ids, bias], no token ids twice, the bias from -1000000 to 1000000",
    ),
    "logit_bias": _rule(
        lambda value: _are_biases(value, _is_id, 100),
        "must be a mapping from token ids, none of them twice, to a bias from -100 to 100",
    ),
    "suppress_tokens": _token_ids(),
    "begin_suppress_tokens": _token_ids(),
    "forced_bos_token_id": _whole(0, optional=True),
    "forced_eos_token_id": _rule(
        lambda value: value is None or _is_sequence(value),
        "must be a token id or a list of token ids, at least one, or null",
    ),
    "exponential_decay_length_penalty": _rule(
        _is_decay, "must be [start, factor], a whole number and one from 0.000001 to 1000000, or null"
    ),
    "renormalize_logits": _flag(),
    "prefix_allowed_tokens_fn": _rule(
        lambda value: value is None or callable(value),
        "must be a function of a row's key and its token ids, or null",
    ),
    "regex": _rule(
        lambda value: value is None or (isinstance(value, str) and value != ""),
        "must be a regular expression, or null",
    ),
    "json_schema": _schema_fault,
    "max_length": _whole(1, optional=True),
    "max_new_tokens": _whole(1, optional=True),
    "min_length": _whole(0),
    "min_new_tokens": _whole(0),
    "stop": _stop_fault,
    "eos_token_id": _token_ids(optional=True),
    "num_return_sequences": _whole(1, MOST_SAMPLES),
    "logprobs": _whole(0, MOST_LOGPROBS, optional=True),
    "prompt_logprobs": _whole(0, MOST_LOGPROBS, optional=True),
    "skip_special_tokens": _flag(),
}
