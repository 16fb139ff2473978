"""The one strict reader of JSON (RFC 8259, I-JSON of RFC 7493): nothing is guessed, rounded or dropped."""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from mindbatch.io.error_lines import shown

MAX_PARTS = 1_000_000
"""Lists, objects and commas: those of a safetensors header for 125,000 tensors of two dimensions."""

MAX_DIGITS = 100
DEEPEST_VALUE = 64
"""Lists and mappings inside one another, below a message: far from where recursion would end the program."""
_MAX_DEPTH = 900
"""Python 3.10 reads about so many levels; newer ones read as many as the stack of the thread holds."""
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}
_MAX_LINES = 100
_LONGEST_KEY = 200
_SURE_DIGITS = 18  # any such number fits 64 bits


class JsonError(ValueError):
    """JSON is refused; the message is the reason, in one line."""


class StrictReader:
    """Reads JSON: unique keys, finite numbers; each kind of file has its bounds.

    integers: what whole numbers may be, beside their number of digits.
    max_depth: objects and arrays within each other; None: as many as all versions of Python read.
    """

    def __init__(
        self,
        *,
        max_digits: int = MAX_DIGITS,
        integers: range | None = None,
        max_depth: int | None = None,
        shown: Callable[[object], str] = shown,
    ) -> None:
        self._max_digits, self._integers = max_digits, integers
        self._max_depth = _MAX_DEPTH if max_depth is None else max_depth
        self._shown = shown
        allowed = "" if max_depth is None else f"; at most {max_depth} levels are allowed"
        self._too_deep = f"JSON is nested too deeply{allowed}"
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._unique_keys,
            parse_int=self._integer,
            parse_float=self._finite,
            parse_constant=self._refuse_constant,
        )

    def parse(self, data: bytes | str) -> Any:
        """Returns the value of `data`. Raises JsonError for anything but one JSON value in UTF-8."""
        try:
            text = data if isinstance(data, str) else data.decode("utf-8")
            if text.startswith("\ufeff") and isinstance(data, bytes):
                raise json.JSONDecodeError("Unexpected UTF-8 BOM (decode using utf-8-sig)", text, 0)
            value = self._decoder.decode(text)
        except UnicodeDecodeError as error:
            raise JsonError(f"not UTF-8 text (byte {error.start})") from error
        except json.JSONDecodeError as error:
            if _depth(error.doc[: error.pos]) > self._max_depth:
                raise JsonError(self._too_deep) from error
            reason = error.msg.removesuffix(" at").rstrip(": ")
            is_one_line = error.doc.count("\n") == 0
            at = f"character {error.pos}" if is_one_line else f"line {error.lineno}, column {error.colno}"
            raise JsonError(f"not valid JSON: {reason} at {at}") from error
        except RecursionError as error:
            raise JsonError(self._too_deep) from error
        if text.count("{") + text.count("[") > self._max_depth:
            self._check_depth(value, self._max_depth)
        return value

    def _unique_keys(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated = next(key for key in content if counts[key] > 1)
            raise JsonError(f"the key {self._shown(repeated)} appears twice in one object")
        return content

    def _integer(self, text: str) -> int:
        if len(text) <= _SURE_DIGITS:
            return int(text)
        if len(text) > self._max_digits:
            raise JsonError(
                f"a number of the JSON has {len(text)} digits; at most {self._max_digits} are allowed"
            )
        number = int(text)
        if self._integers is not None and number not in self._integers:
            raise JsonError(f"the whole number {self._shown(text)} does not fit 64 bits; give it as text")
        return number

    def _finite(self, text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise JsonError(f"the number {self._shown(text)} is too large for 64 bits")
        return number

    def _refuse_constant(self, name: str) -> NoReturn:
        raise JsonError(f"{name} is no number of JSON")

    def _check_depth(self, value: Any, max_depth: int) -> None:
        level: list[Any] = [value]
        for _ in range(max_depth):
            level = [item for outer in level for item in _items(outer) if isinstance(item, (dict, list))]
        if level:
            raise JsonError(self._too_deep)


def _depth(text: str) -> int:
    """Returns how deep the beginning of a JSON text is nested."""
    return max(itertools.accumulate(_STEP.get(mark, 0) for mark in _TEXT.sub("", text)), default=0)


def parts_error(data: bytes, max_containers: int | None = None, max_texts: int | None = None) -> str | None:
    """Returns the reason why JSON could take too much memory or time, counted before anything of it is read;
    or None.

    A value of two bytes, such as an empty list, may take a hundred once it is read.

    max_containers: lists and objects that it may hold. max_texts: keys and texts. None: as many as MAX_PARTS.
    """
    container_limit = MAX_PARTS if max_containers is None else max_containers
    containers, commas = _counted(data, [(0, len(data))])  # with those in texts, which is quick
    has_many_texts = max_texts is not None and data.count(b'"') > 2 * max_texts
    if containers > container_limit or containers + commas > MAX_PARTS or has_many_texts:
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")
        if max_texts is not None and (texts := data.count(b'"') // 2) > max_texts:
            return f"{texts} keys and texts; at most {max_texts} are allowed"
        containers, commas = _counted(data, _outside_texts(data))
    if max_containers is not None and containers > max_containers:
        return f"{containers} lists and objects; at most {max_containers} are allowed"
    if (parts := containers + commas) > MAX_PARTS:
        return f"{parts} lists, objects and commas; at most {MAX_PARTS} are allowed"
    return None


def _counted(data: bytes, spans: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Counts lists and objects, and commas."""
    containers = commas = 0
    for start, end in spans:
        containers += data.count(b"[", start, end) + data.count(b"{", start, end)
        commas += data.count(b",", start, end)
    return containers, commas


def _outside_texts(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields what is outside of texts, none of which holds a quote; all from where there are too many."""
    start = 0
    for _ in range(2 * MAX_PARTS):
        begin = data.find(b'"', start)
        if begin < 0:
            break
        yield start, begin
        end = data.find(b'"', begin + 1)
        start = len(data) if end < 0 else end + 1
    yield start, len(data)


def unicode_error(text: str) -> str | None:
    """Returns the reason why UTF-8 cannot hold a text, or None: JSON can write half a surrogate pair, no
    character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return (
            f"is not valid Unicode: lone surrogate U+{ord(text[error.start]):04X} at character {error.start}"
        )
    return None


def value_errors(value: object, where: str, deepest: int = DEEPEST_VALUE) -> list[str]:
    """Returns a line for each value within `value` that is no JSON, or not valid Unicode; of many the first
    hundred.

    Where it came from JSON, it may still hold half a surrogate pair.
    """
    return [where + line for line in itertools.islice(_lines_of(value, deepest), _MAX_LINES)]


def _lines_of(value: object, deepest: int, depth: int = 0) -> Iterator[str]:
    """Yields the lines from behind the name of the value; a path is written where there is an error only."""
    if isinstance(value, str):
        if error := unicode_error(value):
            yield f": {error}"
    elif isinstance(value, (Mapping, list, tuple)):
        if depth > deepest:
            yield f": nested more than {deepest} deep"
            return
        if isinstance(value, Mapping):
            yield from _key_lines(value)
            for key, item in value.items():
                for line in _lines_of(item, deepest, depth + 1):
                    yield f".{shown(key, _LONGEST_KEY, str)}{line}"
        else:
            for index, item in enumerate(value):
                for line in _lines_of(item, deepest, depth + 1):
                    yield f"[{index}]{line}"
    elif not (
        value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))
    ):
        yield f"={shown(value)}: must be text, a number, true, false, null, a list or a mapping"


def _key_lines(value: Mapping[Any, Any]) -> Iterator[str]:
    for key in value:
        if isinstance(key, str) and key.isascii():
            continue
        error = unicode_error(key) if isinstance(key, str) else "must be a string"
        if error:
            yield f": key {shown(key)} {error}"


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
