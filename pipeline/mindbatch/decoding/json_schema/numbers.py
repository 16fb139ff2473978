"""Numbers of a schema as terminals: exact decimal arithmetic, of integers of any size.

Bounds are compared digit by digit, as regular expressions of the decimal text. Beside a bound no exponent is
written. Where rounding to a double might move a number across a bound, it has at most 15 digits: those of two
numbers become two doubles.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import ceil, floor, gcd, lcm

from mindbatch.decoding.json_schema.terminals import Leaf, all_of, either, regex
from mindbatch.decoding.python_regex import literal

MAX_MULTIPLES = 1000
"""Multiples within bounds that are listed one by one."""
_EXACT = 1 << 53
_WHOLE = "(?:0|[1-9][0-9]*)"
_NONZERO = "[0-9]*[1-9][0-9]*"
_FREE = rf"-?{_WHOLE}(?:\.[0-9]+)?(?:[eE][+-]?[12]?[0-9]{{1,2}})?"
_SHORT = rf"({regex(f'-?{_WHOLE}')} | {regex(rf'-?{_WHOLE}[.][0-9]+')} & {regex('-?[0-9.]{1,16}')})"
_LONG = regex(rf"-?{_WHOLE}(?:\.[0-9]{{1,20}})?")
_COMPILED = {"whitespace_flexible": False}


@dataclass(frozen=True)
class Bound:
    value: Fraction
    is_open: bool
    is_double: bool
    """True if every decimal that is not beyond it is not beyond it as a double either."""


@dataclass(frozen=True)
class NumberSet:
    """Numbers between bounds: integers, multiples of all steps, or the values of a list, as requested."""

    low: Bound | None = None
    high: Bound | None = None
    is_whole: bool = False
    steps: tuple[int | float, ...] = ()
    members: tuple[int | float, ...] | None = None

    def has(self, number: int | float) -> bool:
        low, high, value = self.low, self.high, exact(number)
        return not (
            (low is not None and (value < low.value or (low.is_open and value == low.value)))
            or (high is not None and (value > high.value or (high.is_open and value == high.value)))
            or (self.is_whole and value.denominator != 1)
            or not all(_is_multiple(number, step) for step in self.steps)
        )


def _is_multiple(number: int | float, step: int | float) -> bool:
    """True if it is a multiple also to validators that divide doubles: to them, 0.07 is none of 0.01."""
    is_found = isinstance(step, int) or abs(number) > _EXACT or (number / step).is_integer()
    return is_found and (exact(number) / exact(step)).denominator == 1


def _is_binary(step: int | float) -> bool:
    """True if doubles tell the multiples of a step from all other numbers."""
    return exact(step).denominator.bit_count() == 1


def exact(value: int | float) -> Fraction:
    """Returns the decimal number that JSON writes for the value; of a large float, the integer that it is."""
    return Fraction(value) if isinstance(value, int) or value.is_integer() else Fraction(repr(value))


def bound(value: int | float, *, is_open: bool) -> Bound:
    return Bound(exact(value), is_open, isinstance(value, float) or abs(value) <= _EXACT)


def least_common_multiple(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(lcm(a.numerator, b.numerator), gcd(a.denominator, b.denominator))


def number_leaf(numbers: NumberSet) -> Leaf | None:
    """Returns the terminal of a set of numbers; None if it is empty.

    Raises:
        ValueError: its multiples cannot be expressed; the reason begins with the keyword.
    """
    if numbers.members is not None:
        return _listed(filter(numbers.has, numbers.members))
    if numbers.steps:
        return _multiples(numbers)
    if numbers.is_whole:
        return _whole(*_whole_bounds(numbers, Fraction(1)))
    if numbers.low is None and numbers.high is None:
        return Leaf(regex(_FREE))
    if numbers.low is not None and numbers.high is not None and not _is_interval(numbers.low, numbers.high):
        return None
    return _decimals(numbers, [])


def listed_numbers(numbers: NumberSet) -> tuple[int | float, ...] | None:
    """All numbers of a set of few; None where they are not listed and no few integers."""
    values: Iterable[int | float] | None = numbers.members
    if values is None and numbers.is_whole:
        first, last = _whole_bounds(numbers, Fraction(1))
        if first is not None and last is not None and last - first < MAX_MULTIPLES:
            values = range(first, last + 1)
    return None if values is None else tuple(filter(numbers.has, values))


def _is_interval(low: Bound, high: Bound) -> bool:
    return low.value < high.value or (low.value == high.value and not (low.is_open or high.is_open))


def _listed(values: Iterable[int | float]) -> Leaf | None:
    texts = [text for value in values for text in _texts(value)]
    return Leaf(regex(either(map(literal, texts)))) if texts else None


def _texts(value: int | float) -> Iterator[str]:
    """Yields a listed number as JSON writes it, and without its fraction if that is zero."""
    yield json.dumps(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e20:
        yield str(int(value))


def _whole_bounds(numbers: NumberSet, step: Fraction) -> tuple[int | None, int | None]:
    """Returns the first and the last multiple within the bounds, in steps."""
    low, high = numbers.low, numbers.high
    first = last = None
    if low is not None:
        first = ceil(low.value / step)
        first += low.is_open and first * step == low.value
    if high is not None:
        last = floor(high.value / step)
        last -= high.is_open and last * step == high.value
    return first, last


def _whole(first: int | None, last: int | None) -> Leaf | None:
    if first is not None and last is not None and first > last:
        return None
    sides = [regex("(?:0|-?[1-9][0-9]*)")]
    if first is not None:
        sides.append(regex(_signed_from(first)))
    if last is not None:
        sides.append(regex(_signed_to(last)))
    return Leaf(all_of(sides))


def _signed_from(first: int) -> str:
    return _whole_from(first) if first >= 0 else either([_WHOLE, f"-{_whole_to(-first)}"])


def _signed_to(last: int) -> str:
    return f"-{_whole_from(-last)}" if last < 0 else either([f"-{_WHOLE}", _whole_to(last)])


def _multiples(numbers: NumberSet) -> Leaf | None:
    step = reduce(least_common_multiple, map(exact, numbers.steps))
    if numbers.is_whole:
        step = least_common_multiple(step, Fraction(1))
    first, last = _whole_bounds(numbers, step)
    if first is not None and last is not None and last - first < MAX_MULTIPLES:
        multiples = (_number(count * step) for count in range(first, last + 1))
        return _listed(filter(numbers.has, multiples))
    if step == 1:
        return _whole(first, last)
    if step.denominator == 1:
        return _compiled(int(step), first, last)
    return _decimals(numbers, [regex(_fractions(step))], is_short=not all(map(_is_binary, numbers.steps)))


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _compiled(step: int, first: int | None, last: int | None) -> Leaf:
    """Whole multiples: of all that the library's own schemas have, it is exact with these."""
    schema = {"type": "integer", "multipleOf": step, "x-guidance": _COMPILED}
    for name, count in (("minimum", first), ("maximum", last)):
        if count is not None:
            schema[name] = count * step
            if abs(count * step) > _EXACT:
                raise ValueError(f"multipleOf={step}: bounds beyond 2^53 are not supported with it")
    if step >= 1 << 32:
        raise ValueError(f"multipleOf={step}: at most 2^32 is supported")
    return Leaf("%json " + json.dumps(schema), is_rule=True)


def _unsupported(step: Fraction) -> str:
    return (
        f"multipleOf={_number(step)!r}: supported are whole numbers, those of which 1 is a multiple (0.5, "
        f"0.01), and others with at most {MAX_MULTIPLES} multiples between minimum and maximum"
    )


def _fractions(step: Fraction) -> str:
    """Decimal numbers that are multiples of a step of which a power of ten is a multiple."""
    _, digits = _decimal(step)
    scale = 10 ** len(digits)
    unit = int(step * scale)
    if unit == 1:
        return rf"-?{_WHOLE}(?:\.[0-9]{{1,{len(digits)}}})?"
    if scale % unit or scale // unit > MAX_MULTIPLES:
        raise ValueError(_unsupported(step))
    parts = [f"{count * unit:0{len(digits)}}" for count in range(scale // unit)]
    shorter = {part[:n] for part in parts for n in range(1, len(part) + 1) if not part[n:].strip("0")}
    return rf"-?{_WHOLE}(?:\.{either(sorted(shorter))})?"


def _decimals(numbers: NumberSet, forms: list[str], *, is_short: bool = False) -> Leaf:
    bounds = [side for side in (numbers.low, numbers.high) if side is not None]
    is_short = is_short or any(side.is_open or not side.is_double for side in bounds)
    operands = [*forms, _SHORT if is_short else _LONG]
    if numbers.low is not None:
        operands.append(regex(_from(numbers.low)))
    if numbers.high is not None:
        operands.append(regex(_to(numbers.high)))
    return Leaf(all_of(operands), may_be_empty=len(bounds) == 2)


def _from(low: Bound) -> str:
    if low.value >= 0:
        return _magnitude_from(low.value, low.is_open)
    return either([rf"{_WHOLE}(?:\.[0-9]+)?", f"-{_magnitude_to(-low.value, low.is_open)}"])


def _to(high: Bound) -> str:
    if high.value < 0 or (high.value == 0 and high.is_open):
        return f"-{_magnitude_from(-high.value, high.is_open)}"
    return either([rf"-{_WHOLE}(?:\.[0-9]+)?", _magnitude_to(high.value, high.is_open)])


def _magnitude_from(value: Fraction, is_open: bool) -> str:
    whole, digits = _decimal(value)
    steps = [f"{digits[:i]}{_digit(int(d) + 1, 9)}[0-9]*" for i, d in enumerate(digits) if d != "9"]
    steps.append(digits + (_NONZERO if is_open else "[0-9]*" if digits else "[0-9]+"))
    fraction = rf"\.{either(steps)}"
    if not digits and not is_open:
        fraction = f"(?:{fraction})?"
    return either([rf"{_whole_from(whole + 1)}(?:\.[0-9]+)?", f"{whole}{fraction}"])


def _magnitude_to(value: Fraction, is_open: bool) -> str:
    whole, digits = _decimal(value)
    parts = [rf"{_whole_to(whole - 1)}(?:\.[0-9]+)?"] if whole else []
    if digits:
        steps = [f"{digits[:i]}{_digit(0, int(d) - 1)}[0-9]*" for i, d in enumerate(digits) if d != "0"]
        steps += [digits[:i] for i in range(1, len(digits))]
        steps += [] if is_open else [f"{digits}0*"]
        parts.append(rf"{whole}(?:\.{either(steps)})?")
    elif not is_open:
        parts.append(rf"{whole}(?:\.0+)?")
    return either(parts)


def _decimal(value: Fraction) -> tuple[int, str]:
    """Returns the whole part of a number that is not negative, and the digits of its fraction."""
    whole, rest = divmod(value, 1)
    digits = []
    while rest:
        digit, rest = divmod(rest * 10, 1)
        digits.append(str(digit))
    return whole, "".join(digits)


def _digit(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"


def _whole_from(first: int) -> str:
    """Whole numbers of at least `first`, which is not negative."""
    if first == 0:
        return _WHOLE
    digits = str(first)
    longer = [f"[1-9][0-9]{{{len(digits)},}}"]
    higher = [
        f"{digits[:i]}{_digit(int(d) + 1, 9)}[0-9]{{{len(digits) - 1 - i}}}"
        for i, d in enumerate(digits)
        if d != "9"
    ]
    return either([digits, *higher, *longer])


def _whole_to(last: int) -> str:
    """Whole numbers from 0 to `last`, which is not negative."""
    digits = str(last)
    size = len(digits)
    shorter = ["0"] + ([f"[1-9][0-9]{{0,{size - 2}}}"] if size > 1 else [])
    lower = [
        f"{digits[:i]}{_digit(int(i == 0), int(d) - 1)}[0-9]{{{size - 1 - i}}}"
        for i, d in enumerate(digits)
        if int(d) > int(i == 0)
    ]
    return either([digits, *shorter, *lower])
