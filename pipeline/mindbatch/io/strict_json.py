"""The one strict reader of JSON (RFC 8259, I-JSON of RFC 7493): nothing is guessed, rounded or dropped."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

from mindbatch.io.fault_lines import shown

MAX_PARTS = 1_000_000
"""Lists, objects and commas: those of a safetensors header for 125,000 tensors of two dimensions."""

MAX_DIGITS = 100
_SURE_DIGITS = 18  # any such number fits 64 bits


class JsonFault(ValueError):
    """JSON is refused; the message is the reason, in one line."""


@dataclass(frozen=True, slots=True)
class JsonWording:
    """Wording of a reader's refusals; {found} is the key or number, {digits} its length."""

    syntax: str = "not valid JSON ({error})"
    """Also with {what} and {place}, the character's number from 0."""
    repeated_key: str = "not valid JSON (the key {found} appears twice in one object)"
    no_number: str = "not valid JSON (the number {found} is not allowed)"
    large_float: str = "not valid JSON (the number {found} is too large)"
    large_integer: str = f"not valid JSON (a number has {{digits}} digits; at most {MAX_DIGITS} are allowed)"
    too_deep: str = "JSON nested too deeply"


class StrictReader:
    """Reads JSON: unique keys, finite numbers; each kind of file has its bounds and its words.

    integers: what whole numbers may be, beside their number of digits.
    max_depth: objects and arrays within each other; None: as Python's recursion allows.
    """

    def __init__(
        self,
        words: JsonWording | None = None,
        *,
        max_digits: int = MAX_DIGITS,
        integers: range | None = None,
        max_depth: int | None = None,
        shown: Callable[[object], str] = shown,
    ) -> None:
        self._words = words or JsonWording()
        self._max_digits, self._integers, self._max_depth = max_digits, integers, max_depth
        self._shown = shown
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._unique_keys,
            parse_int=self._integer,
            parse_float=self._finite,
            parse_constant=self._refuse_constant,
        )

    def parse(self, data: bytes | str) -> Any:
        """The value that `data` holds. Raises JsonFault for anything but one JSON value in UTF-8."""
        try:
            text = data if isinstance(data, str) else data.decode("utf-8")
            if text.startswith("\ufeff") and isinstance(data, bytes):
                raise json.JSONDecodeError("Unexpected UTF-8 BOM (decode using utf-8-sig)", text, 0)
            value = self._decoder.decode(text)
        except UnicodeDecodeError as error:
            raise JsonFault(f"not UTF-8 text (byte {error.start})") from error
        except json.JSONDecodeError as error:
            what = error.msg.removesuffix(" at").rstrip(": ")
            raise JsonFault(self._words.syntax.format(error=error, what=what, place=error.pos)) from error
        except RecursionError as error:
            raise JsonFault(self._words.too_deep) from error
        if self._max_depth is not None and text.count("{") + text.count("[") > self._max_depth:
            self._check_depth(value, self._max_depth)
        return value

    def _unique_keys(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            self._refuse(self._words.repeated_key, next(key for key in content if counts[key] > 1))
        return content

    def _integer(self, text: str) -> int:
        if len(text) <= _SURE_DIGITS:
            return int(text)
        if len(text) > self._max_digits:
            self._refuse(self._words.large_integer, text)
        number = int(text)
        if self._integers is not None and number not in self._integers:
            self._refuse(self._words.large_integer, text)
        return number

    def _finite(self, text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            self._refuse(self._words.large_float, text)
        return number

    def _refuse_constant(self, name: str) -> NoReturn:
        raise JsonFault(self._words.no_number.format(found=name))

    def _refuse(self, words: str, value: str) -> NoReturn:
        raise JsonFault(words.format(found=self._shown(value), digits=len(value)))

    def _check_depth(self, value: Any, max_depth: int) -> None:
        level: list[Any] = [value]
        for _ in range(max_depth):
            level = [item for outer in level for item in _items(outer) if isinstance(item, (dict, list))]
        if level:
            raise JsonFault(self._words.too_deep)


def parts_fault(data: bytes) -> str | None:
    """Reason why JSON could take too much memory, counted before anything of it is read; or None.

    A value of two bytes, such as an empty list, may take a hundred once it is read.
    """
    parts = sum(data.count(mark) for mark in (b"[", b"{", b","))
    return (
        f"{parts} lists, objects and commas; at most {MAX_PARTS} are allowed" if parts > MAX_PARTS else None
    )


def unicode_fault(text: str) -> str | None:
    """Reason why UTF-8 cannot hold a text, or None: JSON can write half a surrogate pair, no character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return (
            f"is not valid Unicode: lone surrogate U+{ord(text[error.start]):04X} at character {error.start}"
        )
    return None


def first_unicode_fault(value: Any) -> str | None:
    """The first such fault among the texts and keys of a JSON value, however deep; None if there is none."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            if fault := unicode_fault(item):
                return fault
        elif isinstance(item, dict):
            rest += reversed([*chain.from_iterable(item.items())])
        elif isinstance(item, list):
            rest += reversed(item)
    return None


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
