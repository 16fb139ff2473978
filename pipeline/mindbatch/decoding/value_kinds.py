"""Kinds of values that decoding parameters take: what is allowed, and the one form that each is kept in."""

import math
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

SMALLEST_FACTOR, LARGEST_FACTOR = 1e-6, 1e6
"""Bounds of what logits are divided and multiplied by, so that no logit of a sane model overflows float32."""
MOST_STOPS, MOST_STOP_CHARACTERS = 1 << 10, 1 << 16
"""All of them are looked for after each token."""
LARGEST_SEED = (1 << 64) - 1
"""The seed is the generator's 64-bit key."""
RANDOM = "random"
"""In place of a seed: one is drawn."""
_LONGEST_ID = 20
"""Digits; converting thousands of them takes long, and Python refuses."""


@dataclass(frozen=True)
class ValueKind:
    """Some values.

    takes: which, as words that follow "must be".
    read: the one form of a value, hashable and of plain Python types. ValueError says what is wrong with one
        that is none of them, as words that follow its name.
    token_ids: those that a value holds.
    written: what configurations take, in words, where no plain type says it.
    """

    takes: str
    read: Callable[[Any], Any]
    token_ids: Callable[[Any], Iterable[int]] = lambda value: ()
    written: str = ""


def of(
    takes: str, accepts: Callable[[Any], bool], normal: Callable[[Any], Any] | None = None, **more: Any
) -> ValueKind:
    """The values that, in their normal form, `accepts` is true of. more: of `ValueKind`."""

    def read(value: Any) -> Any:
        value = _plain(value) if normal is None else normal(value)
        if not accepts(value):
            raise ValueError(f"must be {takes}")
        return value

    return ValueKind(takes, read, **more)


def flag() -> ValueKind:
    return of("true or false", lambda value: isinstance(value, bool))


def flag_or(name: str) -> ValueKind:
    takes = f"true, false or {name}"
    return of(takes, lambda value: isinstance(value, bool) or value == name, written=takes)


def whole(low: int, high: float = math.inf, *, optional: bool = False) -> ValueKind:
    span = f"at least {low}" if high == math.inf else f"from {low} to {int(high)}"
    return of(
        f"a whole number, {span}{_or_null(optional)}",
        lambda value: (optional and value is None) or (_is_whole(value) and low <= value <= high),
    )


def seed() -> ValueKind:
    """Whole numbers; RANDOM becomes one that is drawn here."""
    return of(
        f"{whole(0, LARGEST_SEED).takes}, or {RANDOM}",
        lambda value: _is_whole(value) and 0 <= value <= LARGEST_SEED,
        _seed,
        written="whole number or random",
    )


def drawn_seed() -> int:
    """A number to begin with, another one each time; short enough to be typed, and never the default."""
    return 1 + secrets.randbelow((1 << 32) - 1)


def number(takes: str, accepts: Callable[[float], bool]) -> ValueKind:
    return of(takes, lambda value: isinstance(value, float) and accepts(value), _real)


def span(low: float, high: float) -> ValueKind:
    return number(f"from {_figure(low)} to {_figure(high)}", lambda value: low <= value <= high)


def share() -> ValueKind:
    """Parts of a whole, which may be all of it."""
    return number("above 0 and at most 1", lambda value: 0 < value <= 1)


def cutoff() -> ValueKind:
    """Probabilities below which something is dropped."""
    return number("at least 0 and below 1", lambda value: 0 <= value < 1)


def choice(*names: str) -> ValueKind:
    return of(f"{', '.join(names)} or null", lambda value: value is None or value in names)


def token_id() -> ValueKind:
    return replace(whole(0, optional=True), token_ids=lambda value: () if value is None else (value,))


def token_ids(*, optional: bool = False, least: int = 0) -> ValueKind:
    """Token ids, `least` or more; one stands for a list of it. Without `optional`, None is the empty list."""
    bound = "at least one" if least else "each at least 0"
    return of(
        f"a token id or a list of token ids, {bound}{_or_null(optional)}",
        lambda value: (optional and value is None) or (_are_ids(value) and len(value) >= least),
        _ids if optional else _empty_or(_ids),
        token_ids=lambda value: value or (),
        written="token id, list of token ids or null" if optional else "list of token ids",
    )


def token_sequences() -> ValueKind:
    return of(
        "a list of lists of token ids, none of them empty",
        lambda value: isinstance(value, tuple) and all(map(_is_sequence, value)),
        _empty_or(_id_sequences),
        token_ids=lambda value: (token for sequence in value for token in sequence),
        written="list of lists of token ids",
    )


def biased_sequences() -> ValueKind:
    return of(
        f"a list of pairs [token ids, bias], no token ids twice, the bias from {_figure(-LARGEST_FACTOR)} to "
        f"{_figure(LARGEST_FACTOR)}",
        lambda value: _are_biases(value, _is_sequence, LARGEST_FACTOR),
        _empty_or(_pairs),
        token_ids=lambda value: (token for sequence, _ in value for token in sequence),
        written="list of [token ids, bias]",
    )


def biased_tokens(most: int) -> ValueKind:
    """Pairs of a token id and a bias, in the order of their tokens."""
    return of(
        f"a mapping from token ids, none of them twice, to a bias from {-most} to {most}",
        lambda value: _are_biases(value, _is_id, most),
        _empty_or(_biases_by_id),
        token_ids=lambda value: (token for token, _ in value),
        written="mapping from token ids to biases, or null",
    )


def start_and_factor() -> ValueKind:
    """A number of tokens and a factor, or None."""
    return of(
        f"[start, factor], a whole number and one from {_figure(SMALLEST_FACTOR)} to "
        f"{_figure(LARGEST_FACTOR)}, or null",
        _is_decay,
        _start_and_factor,
        written="[start, factor] or null",
    )


def function(arguments: str) -> ValueKind:
    return of(f"a function of {arguments}, or null", lambda value: value is None or callable(value))


def texts() -> ValueKind:
    """Texts; one stands for a list of it."""
    takes = "a text or a list of texts, none of them empty"

    def read(value: Any) -> Any:
        several = (value,) if isinstance(value, str) else _sequence(value)
        if not isinstance(several, tuple) or not all(isinstance(text, str) and text for text in several):
            raise ValueError(f"must be {takes}")
        if len(several) > MOST_STOPS or sum(map(len, several)) > MOST_STOP_CHARACTERS:
            raise ValueError(
                f"must be at most {MOST_STOPS} texts of {MOST_STOP_CHARACTERS} characters together"
            )
        return several

    return ValueKind(takes, read, written="text or list of texts")


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
    """A JSON schema, kept as its compact text, or None."""

    def read(value: Any) -> Any:
        if value is None:
            return None
        from mindbatch.decoding.grammar import canonical_schema, refuse_unreadable

        text = canonical_schema(value)
        refuse_unreadable("json_schema", text)
        return text

    return ValueKind("a JSON schema or its text, or null", read, written="schema, its text or null")


def _or_null(optional: bool) -> str:
    return ", or null" if optional else ""


def _figure(value: float) -> str:
    return f"{value:f}".rstrip("0").rstrip(".")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_ids(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_id, value))


def _is_sequence(value: object) -> bool:
    return _are_ids(value) and value != ()


def _are_biases(value: object, is_key: Callable[[object], bool], most: float) -> bool:
    """True if `value` is a tuple of (key, bias), no key twice and no bias beyond `most`."""
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


def _of_numpy(value: object, name: str) -> bool:
    """True if `value` is of NumPy's type `name`; NumPy need not be imported to know that it is not."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, getattr(numpy, name))


def _plain(value: Any) -> Any:
    """NumPy's integers and booleans as Python's."""
    if isinstance(value, bool) or _of_numpy(value, "bool_"):
        return bool(value)
    return int(value) if isinstance(value, Integral) else value


def _seed(value: Any) -> Any:
    """A text of digits stands for its number: variables of the environment have no other numbers."""
    if not isinstance(value, str):
        return _plain(value)
    is_number = value.isascii() and value.isdigit() and len(value) <= _LONGEST_ID
    return drawn_seed() if value == RANDOM else int(value) if is_number else value


def _real(value: Any) -> Any:
    """A number as a float; infinite where it is too large for one."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _sequence(value: Any) -> Any:
    if _of_numpy(value, "ndarray"):
        value = value.tolist()
    return tuple(_plain(item) for item in value) if isinstance(value, list | tuple) else _plain(value)


def _empty_or(normal: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Takes None for the empty value, as transformers does for some lists."""
    return lambda value: () if value is None else normal(value)


def _ids(value: Any) -> Any:
    value = _sequence(value)
    return (value,) if _is_whole(value) else value


def _id_sequences(value: Any) -> Any:
    value = _sequence(value)
    return tuple(_sequence(item) for item in value) if isinstance(value, tuple) else value


def _pairs(value: Any) -> Any:
    """A mapping or a list of pairs, as a tuple of pairs whose second part is a float."""
    entries = list(value.items()) if isinstance(value, Mapping) else _sequence(value)
    if not isinstance(entries, list | tuple):
        return value
    pairs = [_sequence(item) for item in entries]
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


def _start_and_factor(value: Any) -> Any:
    value = _sequence(value)
    return (value[0], _real(value[1])) if isinstance(value, tuple) and len(value) == 2 else value
