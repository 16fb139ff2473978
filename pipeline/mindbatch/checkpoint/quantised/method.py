"""The declaration of a method of quantisation, and what methods read of `quantization_config` alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mindbatch.checkpoint.quantised.scheme import Scheme


class SettingsReader(Protocol):
    """Typed values of `quantization_config`; every error is noted, and an allowed value is given instead."""

    def value(self, key: str) -> Any: ...

    def flag(self, key: str) -> bool: ...

    def positive(self, key: str) -> int: ...

    def choice(self, key: str, allowed: Mapping[str, str]) -> str: ...

    def needs(self, key: str, allowed: Sequence[Any]) -> None:
        """Notes an error unless the value is allowed or null."""

    def error(self, key: str, problem: str) -> None: ...

    def within(self, key: str, content: Any) -> SettingsReader:
        """Reads the settings that a key holds."""
        ...


@dataclass(frozen=True)
class QuantisationMethod:
    """A method of quantisation that is read; each is declared in a file of its own, beside its layouts.

    name: value of quant_method in `quantization_config`.
    title: words for what is read of it, for messages.
    read: chooses the layouts by the settings.
    """

    name: str
    title: str
    read: Callable[[SettingsReader], Scheme]


_MAX_EXPRESSION = 1000
_REPEATED_GROUP = re.compile(r"\)[*+{]")


def compiled(expression: str) -> re.Pattern[str] | str:
    """The regular expression for names; what is wrong with one that is none, or may take for ever."""
    if len(expression) > _MAX_EXPRESSION or _REPEATED_GROUP.search(expression):
        return f"must have at most {_MAX_EXPRESSION} characters, and no group that is repeated"
    try:
        return re.compile(expression)
    except (re.error, RecursionError, OverflowError) as error:
        return f"must be a regular expression ({error})"


def read_bits(settings: SettingsReader, key: str, allowed: tuple[int, ...] = (4, 8)) -> int:
    """Reads the number of bits of a code; where it is not allowed, an error is noted."""
    bits = settings.value(key)
    if isinstance(bits, int) and bits in allowed:
        return bits
    settings.error(key, f"must be {' or '.join(map(str, allowed))}")
    return allowed[0]


def read_group_size(settings: SettingsReader) -> int | None:
    """Reads the number of inputs that have a scale together; None for all of them."""
    return None if settings.value("group_size") == -1 else settings.positive("group_size")
