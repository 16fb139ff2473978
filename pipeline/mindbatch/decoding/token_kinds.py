"""Kinds of values that only decoding parameters take: tokens, seeds, and what constrains an output."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mindbatch.fields.kinds import (
    ValueKind,
    figure,
    is_whole,
    number,
    of,
    or_null,
    plain,
    real,
    sequence,
    whole,
)

SMALLEST_FACTOR, LARGEST_FACTOR = 1e-6, 1e6
"""Bounds of what logits are divided and multiplied by, so that no logit of a sane model overflows float32."""
MAX_STOPS, MAX_STOP_CHARACTERS = 1 << 10, 1 << 16
"""All of them are looked for after each token."""
LONGEST_TAG = 100
LARGEST_SEED = (1 << 64) - 1
"""The seed is the generator's 64-bit key."""
RANDOM = "random"
"""The value of seed that draws one."""
_LONGEST_ID = 20
"""Digits; converting thousands of them takes long, and Python refuses."""


def seed() -> ValueKind:
    """Whole numbers; RANDOM becomes one that is drawn here."""
    return of(
        f"{whole(0, LARGEST_SEED).takes}, or {RANDOM}",
        lambda value: is_whole(value) and 0 <= value <= LARGEST_SEED,
        _seed,
        is_plain=False,
        brief="whole number or random",
    )


def drawn_seed() -> int:
    """Draws a seed, short enough to be typed and never the default."""
    return 1 + secrets.randbelow((1 << 32) - 1)


def cutoff() -> ValueKind:
    """Probabilities below which something is dropped."""
    return number("at least 0 and below 1", lambda value: 0 <= value < 1)


def token_id() -> ValueKind:
    return replace(whole(0, optional=True), token_ids=lambda value: () if value is None else (value,))


def token_ids(*, optional: bool = False, least: int = 0) -> ValueKind:
    """Token ids, `least` or more; one stands for a list of it. Without `optional`, None is the empty list."""
    bound = "at least one" if least else "each at least 0"
    return of(
        f"a token id or a list of token ids, {bound}{or_null(optional)}",
        lambda value: (optional and value is None) or (_are_ids(value) and len(value) >= least),
        _ids if optional else _empty_or(_ids),
        token_ids=lambda value: value or (),
        is_plain=False,
        brief="token id, list of token ids or null" if optional else "list of token ids",
    )


def token_sequences() -> ValueKind:
    return of(
        "a list of lists of token ids, none of them empty",
        lambda value: isinstance(value, tuple) and all(map(_is_sequence, value)),
        _empty_or(_id_sequences),
        token_ids=lambda value: (token for sequence in value for token in sequence),
        is_plain=False,
        brief="list of lists of token ids",
    )


def biased_sequences() -> ValueKind:
    return of(
        f"a list of pairs [token ids, bias], no token ids twice, the bias from {figure(-LARGEST_FACTOR)} to "
        f"{figure(LARGEST_FACTOR)}",
        lambda value: _are_biases(value, _is_sequence, LARGEST_FACTOR),
        _empty_or(_pairs),
        token_ids=lambda value: (token for sequence, _ in value for token in sequence),
        is_plain=False,
        brief="list of [token ids, bias]",
    )


def biased_tokens(limit: int) -> ValueKind:
    """Pairs of a token id and a bias, in the order of their tokens."""
    return of(
        f"a mapping from token ids, none of them twice, to a bias from {-limit} to {limit}",
        lambda value: _are_biases(value, _is_id, limit),
        _empty_or(_biases_by_id),
        token_ids=lambda value: (token for token, _ in value),
        is_plain=False,
        brief="mapping from token ids to biases, or null",
    )


def start_and_factor() -> ValueKind:
    """Pairs of a number of tokens and a factor, or None."""
    return of(
        f"[start, factor], a whole number and one from {figure(SMALLEST_FACTOR)} to "
        f"{figure(LARGEST_FACTOR)}, or null",
        _is_decay,
        _start_and_factor,
        is_plain=False,
        brief="[start, factor] or null",
    )


def function(arguments: str) -> ValueKind:
    return of(f"a function of {arguments}, or null", lambda value: value is None or callable(value))


def stop_texts() -> ValueKind:
    """Texts; one stands for a list of it."""
    takes = "a text or a list of texts, none of them empty"

    def read(value: Any) -> Any:
        several = (value,) if isinstance(value, str) else sequence(value)
        if not isinstance(several, tuple) or not all(isinstance(text, str) and text for text in several):
            raise ValueError(f"must be {takes}")
        if len(several) > MAX_STOPS or sum(map(len, several)) > MAX_STOP_CHARACTERS:
            raise ValueError(
                f"must be at most {MAX_STOPS} texts of {MAX_STOP_CHARACTERS} characters together"
            )
        return several

    return ValueKind(takes, read, is_plain=False, brief="text or list of texts")


def tag_pair() -> ValueKind:
    """Pairs of an opening and a closing tag, or None."""
    return of(
        f"[opening, closing], two texts of 1 to {LONGEST_TAG} characters, or null",
        lambda value: (
            value is None or (isinstance(value, tuple) and len(value) == 2 and all(map(_is_tag, value)))
        ),
        sequence,
        is_plain=False,
        brief="[opening, closing] or null",
    )


def _is_tag(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TAG


def regular_expression() -> ValueKind:
    takes = "a regular expression, or null"

    def read(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise ValueError(f"must be {takes}")
        from mindbatch.decoding.grammar import refuse_unreadable  # few parameters have one

        refuse_unreadable("regex", value)
        return value

    return ValueKind(takes, read)


def json_schema() -> ValueKind:
    """JSON schemas, kept as compact text, or None."""

    def read(value: Any) -> Any:
        if value is None:
            return None
        from mindbatch.decoding.grammar import canonical_schema, refuse_unreadable

        text = canonical_schema(value)
        refuse_unreadable("json_schema", text)
        return text

    return ValueKind(
        "a JSON schema or its text, or null", read, is_plain=False, brief="schema, its text or null"
    )


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_ids(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_id, value))


def _is_sequence(value: object) -> bool:
    return _are_ids(value) and value != ()


def _are_biases(value: object, is_key: Callable[[object], bool], limit: float) -> bool:
    """True if `value` is a tuple of (key, bias), no key twice and no bias beyond `limit`."""
    if not isinstance(value, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        return False
    if not all(is_key(key) and isinstance(bias, float) and abs(bias) <= limit for key, bias in value):
        return False
    return len({key for key, _ in value}) == len(value)


def _is_decay(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    start, factor = value
    return _is_id(start) and isinstance(factor, float) and SMALLEST_FACTOR <= factor <= LARGEST_FACTOR


def _seed(value: Any) -> Any:
    """Reads a seed; a text of digits is its number, as variables of the environment have no others."""
    if not isinstance(value, str):
        return plain(value)
    is_number = value.isascii() and value.isdigit() and len(value) <= _LONGEST_ID
    return drawn_seed() if value == RANDOM else int(value) if is_number else value


def _empty_or(normal: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Takes None for the empty value, as transformers does for some lists."""
    return lambda value: () if value is None else normal(value)


def _ids(value: Any) -> Any:
    value = sequence(value)
    return (value,) if is_whole(value) else value


def _id_sequences(value: Any) -> Any:
    value = sequence(value)
    return tuple(sequence(item) for item in value) if isinstance(value, tuple) else value


def _pairs(value: Any) -> Any:
    """Reads a mapping or a list of pairs as a tuple of pairs whose second part is a float."""
    entries = list(value.items()) if isinstance(value, Mapping) else sequence(value)
    if not isinstance(entries, list | tuple):
        return value
    pairs = [sequence(item) for item in entries]
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        return value
    return tuple((sequence(first), real(second)) for first, second in pairs)


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


def _start_and_factor(value: Any) -> Any:
    value = sequence(value)
    return (value[0], real(value[1])) if isinstance(value, tuple) and len(value) == 2 else value
