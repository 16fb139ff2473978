"""Owns reading a prompt a line from bytes: bounded lines, strict UTF-8, line numbers for what is wrong."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

DEFAULT_MAX_LINE_BYTES = 10 * 2**20
EMPTY_LINE = "the line is empty"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SKIP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its number from 1, and either its text or the reason why it cannot be used."""

    number: int
    text: str | None
    fault: str | None = None


def text_lines(stream: BinaryIO, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES) -> Iterator[Line]:
    r"""Every line of the stream, split at b"\n" only (U+2028 and the like are text), without "\r\n" or "\n".

    A byte order mark at the very start is dropped; a final newline does not begin another line. No more than
    `max_line_bytes` (the newline not counted) of a line are held in memory.
    """
    number = 0
    while raw := stream.readline(max_line_bytes + 2):  # room for "\r\n"
        number += 1
        too_long = not raw.endswith(b"\n") and len(raw) == max_line_bytes + 2 and _skip_rest(stream)
        if number == 1:
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
        yield _line(number, raw.removesuffix(b"\n").removesuffix(b"\r"), max_line_bytes, too_long=too_long)


def _line(number: int, content: bytes, max_line_bytes: int, *, too_long: bool) -> Line:
    if too_long or len(content) > max_line_bytes:
        return Line(number, None, f"the line is longer than {max_line_bytes} bytes")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        return Line(
            number, None, f"not valid UTF-8: byte 0x{content[error.start]:02x} at position {error.start}"
        )
    return Line(number, text) if text else Line(number, None, EMPTY_LINE)


def _skip_rest(stream: BinaryIO) -> bool:
    while (raw := stream.readline(_SKIP_BYTES)) and not raw.endswith(b"\n"):
        pass
    return True
