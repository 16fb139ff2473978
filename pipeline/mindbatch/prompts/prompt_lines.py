"""Reads numbered lines from bytes: split at newlines only, of bounded length, in strict UTF-8."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from mindbatch.io.strict_json import JsonError, StrictReader, value_errors

MAX_DEPTH = 100
"""Maximum nesting of objects and arrays; far above real rows, far below the limits of later steps."""

_BLANK = " \t\r\n"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_KINDS = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false"}
_READER = StrictReader(integers=range(-(2**63), 2**64), max_depth=MAX_DEPTH)


def parse_row(text: str) -> dict[str, Any]:
    """Parses a JSON object. Raises JsonError as `parse_json`, and for any other value."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise JsonError(f"holds {_KINDS.get(type(value), 'null')}; must be a JSON object")
    return value


def parse_json(text: str) -> Any:
    """Parses one JSON value.

    Raises:
        JsonError: it is not one JSON value; or it has NaN, Infinity, a number beyond 64 bits, a duplicate
            key, half a surrogate pair, or too deep nesting. The message does not have the row's location.
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

    content: includes the final b"\n" or b"\r\n"; truncated if the line is too long.
    """

    number: int
    content: bytes
    too_long: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its number from 1, and either its text or its error."""

    number: int
    text: str | None
    error: str | None = None


def raw_lines(
    stream: BinaryIO,
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
    dropped: Callable[[bytes], object] | None = None,
) -> Iterator[RawLine]:
    r"""Yields the lines of the stream, split at b"\n" only (U+2028 and the like are text).

    A byte order mark at the start is dropped; a final newline does not start another line. At most
    `max_line_bytes` of a line, without its end, are kept in memory; `dropped` is called with the rest in
    chunks.
    """
    number = 0
    while content := stream.readline(max_line_bytes + 2):  # and "\r\n"
        number += 1
        too_long = len(content) > max_line_bytes and len(without_end(content)) > max_line_bytes
        if len(content) == max_line_bytes + 2 and not content.endswith(b"\n"):
            _drop_rest(stream, dropped)
        if number == 1:
            content = content.removeprefix(BYTE_ORDER_MARK)
        yield RawLine(number, content, too_long)


def text_lines(stream: BinaryIO, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES) -> Iterator[Line]:
    r"""Yields the lines as text, without the final b"\r\n" or b"\n"."""
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
    r"""Removes a final b"\n" or b"\r\n"."""
    return content.removesuffix(b"\n").removesuffix(b"\r")


def too_long_error(noun: str, max_bytes: int) -> str:
    """Returns the error of a line, or another `noun`, of too many bytes."""
    return f"the {noun} is longer than {max_bytes} bytes"


def utf8_error(error: UnicodeDecodeError) -> str:
    """Returns the error of bytes that are not UTF-8."""
    return f"not valid UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start}"


def _drop_rest(stream: BinaryIO, dropped: Callable[[bytes], object] | None) -> None:
    while chunk := stream.readline(_SKIP_BYTES):
        if dropped:
            dropped(chunk)
        if chunk.endswith(b"\n"):
            return
