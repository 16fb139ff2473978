"""Kinds of values: the allowed values, and the normal form that a value is kept in."""

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from mindbatch.io.error_lines import did_you_mean

LARGEST_COUNT = 2**31 - 1


@dataclass(frozen=True)
class ValueKind:
    """A set of allowed values.

    takes: description of the values, as words that follow "must be".
    read: converts a value to its normal form, hashable and of plain Python types; raises ValueError for a
        value that is not allowed, whose text follows the name of the key.
    brief: a shorter description, for help.
    is_plain: a plain Python type describes the values.
    names: all values, where they are few.
    token_ids: returns the token ids in a value.
    is_text_or_list: a typed value is taken literally as text, unless it is in brackets.
    """

    takes: str
    read: Callable[[Any], Any]
    brief: str = ""
    is_plain: bool = True
    names: tuple[Any, ...] = ()
    token_ids: Callable[[Any], Iterable[int]] = lambda value: ()
    is_text_or_list: bool = False


def of(
    takes: str, accepts: Callable[[Any], bool], normal: Callable[[Any], Any] | None = None, **more: Any
) -> ValueKind:
    """Returns the kind of values whose normal form `accepts`. more: other fields of `ValueKind`."""

    def read(value: Any) -> Any:
        value = plain(value) if normal is None else normal(value)
        if not accepts(value):
            raise ValueError(f"must be {takes}")
        return value

    return ValueKind(takes, read, **more)


def flag() -> ValueKind:
    return of("true or false", lambda value: isinstance(value, bool))


def flag_or(name: str) -> ValueKind:
    return of(
        f"true, false or {name}", lambda value: isinstance(value, bool) or value == name, is_plain=False
    )


def whole(low: float = -math.inf, high: float = math.inf, *, optional: bool = False) -> ValueKind:
    takes = "a whole number"
    if low > -math.inf:
        takes += f", at least {int(low)}" if high == math.inf else f", from {int(low)} to {int(high)}"
    return of(
        f"{takes}{or_null(optional)}",
        lambda value: (optional and value is None) or (is_whole(value) and low <= value <= high),
        brief=f"a whole number{' or null' * optional}",
    )


def count(low: int = 0, high: int = LARGEST_COUNT) -> ValueKind:
    """A number of things, which fits 31 bits."""
    if high < LARGEST_COUNT:
        return whole(low, high)
    bounded = whole(low)

    def read(value: Any) -> Any:
        value = bounded.read(value)
        if value > LARGEST_COUNT:
            raise ValueError(f"must be at most {LARGEST_COUNT}")
        return value

    return replace(bounded, read=read)


def number(takes: str = "a number", accepts: Callable[[float], bool] = lambda value: True) -> ValueKind:
    return of(takes, lambda value: isinstance(value, float) and accepts(value), real, brief="a number")


def span(low: float, high: float) -> ValueKind:
    return number(f"from {figure(low)} to {figure(high)}", lambda value: low <= value <= high)


def share() -> ValueKind:
    """A share: above 0, at most 1."""
    return number("above 0 and at most 1", lambda value: 0 < value <= 1)


def text() -> ValueKind:
    return of("text", lambda value: isinstance(value, str))


def choice(*names: Any, optional: bool = False) -> ValueKind:
    """One of a few values, texts or numbers."""
    takes = f"{'one of ' * (len(names) > 1)}{', '.join(map(str, names))}{or_null(optional)}"

    def read(value: Any) -> Any:
        if value in names or (optional and value is None):
            return value
        near = did_you_mean(value, map(str, names)) if isinstance(value, str) else ""
        raise ValueError(f"must be {takes}{near}")

    return ValueKind(takes, read, brief=" | ".join(map(str, names)), names=names)


def texts(noun: str, like: str = "") -> ValueKind:
    """A list of texts, none of them empty. like: an example, as it is typed."""
    return of(
        f"a list of {noun}{f', like {like}' * bool(like)}",
        lambda value: isinstance(value, tuple) and all(isinstance(item, str) and item for item in value),
        sequence,
        brief=f"list of {noun}",
        is_plain=False,
    )


def paths() -> ValueKind:
    """A path, a list of paths, or null; a typed value is taken literally, unless it is a list."""
    return of(
        "a path, a list of paths, like [a.csv, b.jsonl], or null",
        lambda value: (
            value is None
            or isinstance(value, str)
            or (isinstance(value, tuple) and value != () and all(isinstance(item, str) for item in value))
        ),
        sequence,
        brief="path, list of paths or null",
        is_plain=False,
        is_text_or_list=True,
    )


def described(brief: str) -> ValueKind:
    """Values of several types, which the schema checks itself."""
    return ValueKind(brief, lambda value: value, brief, is_plain=False)


def or_null(optional: bool) -> str:
    return ", or null" if optional else ""


def figure(value: float) -> str:
    return f"{value:f}".rstrip("0").rstrip(".")


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def of_numpy(value: object, name: str) -> bool:
    """True if `value` is of NumPy's type `name`; NumPy need not be imported to know that it is not."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, getattr(numpy, name))


def plain(value: Any) -> Any:
    """NumPy's integers and booleans as Python's."""
    if isinstance(value, bool) or of_numpy(value, "bool_"):
        return bool(value)
    return int(value) if isinstance(value, Integral) else value


def real(value: Any) -> Any:
    """Returns a number as a float; infinite where it is too large for one."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf


def sequence(value: Any) -> Any:
    if of_numpy(value, "ndarray"):
        value = value.tolist()
    return tuple(plain(item) for item in value) if isinstance(value, list | tuple) else plain(value)
