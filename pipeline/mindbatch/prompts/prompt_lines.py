"""Owns reading lines from bytes: split at newlines only, bounded, strict UTF-8, numbered."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from mindbatch.io.strict_json import JsonError, StrictReader, value_errors

MAX_DEPTH = 100
"""Objects and arrays within each other; far above any real row, far below what later steps can take."""

_BLANK = " \t\r\n"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_KINDS = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false"}
_READER = StrictReader(integers=range(-(2**63), 2**64), max_depth=MAX_DEPTH)


def parse_row(text: str) -> dict[str, Any]:
    """The object that `text` holds. Raises JsonError as `parse_json`, and for any other value."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise JsonError(f"holds {_KINDS.get(type(value), 'null')}; must be a JSON object")
    return value


def parse_json(text: str) -> Any:
    """The value that `text` holds.

    Raises:
        JsonError: anything but one JSON value; NaN, Infinity and numbers that 64 bits cannot hold; a key that
            stands twice; half a surrogate pair; values nested too deeply. Without the row's place.
    """
    if not text.strip(_BLANK):
        raise JsonError(EMPTY_LINE)
    value = _READER.parse(text)
    if _SURROGATE.search(text) and (errors := value_errors(value, "value", MAX_DEPTH)):
        raise JsonError(errors[0])
    return value


DEFAULT_MAX_LINE_BYTES = 10 * 2**20
EMPTY_LINE = "the line is empty"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SKIP_BYTES = 1 << 20


class RawLine(NamedTuple):
    r"""The bytes of one line, its number from 1, and whether it is longer than allowed.

    content: with the b"\n" or b"\r\n" that ended it; only the beginning of a line that is too long.
    """

    number: int
    content: bytes
    too_long: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its number from 1, and either its text or the reason why it cannot be used."""

    number: int
    text: str | None
    error: str | None = None


def raw_lines(
    stream: BinaryIO,
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
    dropped: Callable[[bytes], object] | None = None,
) -> Iterator[RawLine]:
    r"""Every line of the stream, split at b"\n" only (U+2028 and the like are text).

    A byte order mark at the very start is dropped; a final newline does not begin another line. No more than
    `max_line_bytes` (the line's end not counted) of a line are held in memory; `dropped` is shown the rest,
    piece by piece.
    """
    number = 0
    while content := stream.readline(max_line_bytes + 2):  # room for "\r\n"
        number += 1
        too_long = len(content) > max_line_bytes and len(without_end(content)) > max_line_bytes
        if len(content) == max_line_bytes + 2 and not content.endswith(b"\n"):
            _drop_rest(stream, dropped)
        if number == 1:
            content = content.removeprefix(BYTE_ORDER_MARK)
        yield RawLine(number, content, too_long)


def text_lines(stream: BinaryIO, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES) -> Iterator[Line]:
    r"""Yields the lines as text, without the b"\r\n" or b"\n" that ended them."""
    for number, content, too_long in raw_lines(stream, max_line_bytes):
        if too_long:
            yield Line(number, None, too_long_error("line", max_line_bytes))
            continue
        try:
            text = without_end(content).decode("utf-8")
        except UnicodeDecodeError as error:
            yield Line(number, None, utf8_error(error))
        else:
            yield Line(number, text) if text else Line(number, None, EMPTY_LINE)


def without_end(content: bytes) -> bytes:
    r"""A line's bytes without its b"\n" or b"\r\n"."""
    return content.removesuffix(b"\n").removesuffix(b"\r")


def too_long_error(what: str, max_bytes: int) -> str:
    """The reason why a line (or what else is named) of too many bytes cannot be used."""
    return f"the {what} is longer than {max_bytes} bytes"


def utf8_error(error: UnicodeDecodeError) -> str:
    """The reason why bytes cannot be used that failed to decode."""
    return f"not valid UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start}"


def _drop_rest(stream: BinaryIO, dropped: Callable[[bytes], object] | None) -> None:
    while piece := stream.readline(_SKIP_BYTES):
        if dropped:
            dropped(piece)
        if piece.endswith(b"\n"):
            return
