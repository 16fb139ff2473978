"""Protocol Buffers' wire format, read strictly and without reading what is skipped, and written.

Format (https://protobuf.dev/programming-guides/encoding): a message is a row of fields. Each begins with a
varint, number << 3 | wire type; wire type 0 is followed by a varint, wire type 2 by a length and that many
bytes. A varint has seven bits a byte, lowest first, and the eighth says that more follow. Strictly means:
varints as short as they can be, no wire type but these two, nothing beyond the message that holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from mindbatch.checkpoint.error_lines import shown
from mindbatch.io.errors import CheckpointError

VARINT, BYTES = 0, 2
_MAX_VARINT_BYTES = 10
_WINDOW_BYTES = 4096

ReadRange = Callable[[int, int], bytes]


@dataclass
class ByteSource:
    """Bytes read through a window: `fetch(offset, count)` gives at most `count` bytes, fewer only at the end.

    subject: what is being read, for the messages, such as "tensor 'x': ".
    """

    where: str
    fetch: ReadRange
    subject: str = ""
    _start: int = 0
    _window: bytes = b""

    def byte(self, position: int) -> int:
        """The byte there, out of a window of a few KiB."""
        if not 0 <= position - self._start < len(self._window):
            self._start, self._window = position, self.fetch(position, _WINDOW_BYTES)
        if not self._window:
            self.refuse(position, "truncated")
        return self._window[position - self._start]

    def refuse(self, position: int, error: str) -> NoReturn:
        raise CheckpointError(f"{self.where}: {self.subject}byte {position}: {error}")


class WireReader:
    """One message: the bytes from `position` to `end` of its source. CheckpointError names byte and error."""

    def __init__(self, source: ByteSource, position: int, end: int) -> None:
        self.source = source
        self.position = position
        self.end = end

    @classmethod
    def over(cls, data: bytes, where: str) -> WireReader:
        return cls(ByteSource(where, lambda start, count: data[start : start + count]), 0, len(data))

    @property
    def at_end(self) -> bool:
        return self.position >= self.end

    def refuse(self, error: str) -> NoReturn:
        self.source.refuse(self.position, error)

    def varint(self) -> int:
        """An unsigned number of at most 64 bits."""
        value = 0
        for index in range(_MAX_VARINT_BYTES):
            if self.at_end:
                self.refuse("truncated: a number reaches beyond its message")
            byte = self.source.byte(self.position)
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if (index and not byte) or value >= 1 << 64:
                    self.refuse("a number is not written as it must be")
                self.position += 1
                return value
            self.position += 1
        self.refuse(f"a number of more than {_MAX_VARINT_BYTES} bytes")

    def signed(self) -> int:
        """A number of 64 bits in two's complement (int32 and int64 are written so)."""
        value = self.varint()
        return value - (1 << 64) if value >= 1 << 63 else value

    def tag(self) -> tuple[int, int]:
        """The number and the wire type of the next field."""
        position = self.position
        number, kind = divmod(self.varint(), 8)
        if kind not in (VARINT, BYTES) or not number:
            self.source.refuse(position, f"field {number} of wire type {kind}; must be of type 0 or 2")
        return number, kind

    def message(self) -> WireReader:
        """Reads a nested message, text or bytes field; this reader continues after it."""
        length = self.varint()
        if length > self.end - self.position:
            self.refuse(f"truncated: {length} bytes needed, {self.end - self.position} are left")
        inner = WireReader(self.source, self.position, self.position + length)
        self.position = inner.end
        return inner

    def content(self, limit: int) -> bytes:
        length = self.end - self.position
        if length > limit:
            self.refuse(f"{length} bytes; at most {limit} are allowed here")
        data = self.source.fetch(self.position, length)
        if len(data) < length:
            self.refuse("truncated")
        self.position = self.end
        return data

    def text(self, limit: int) -> str:
        position = self.position
        data = self.content(limit)
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.source.refuse(position, f"{shown(data)} is not UTF-8 text")


def varint(value: int) -> bytes:
    """The shortest form; a negative number in two's complement of 64 bits."""
    value &= (1 << 64) - 1
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3 | VARINT) + varint(value)


def bytes_header(number: int, length: int) -> bytes:
    return varint(number << 3 | BYTES) + varint(length)


def bytes_field(number: int, content: bytes) -> bytes:
    return bytes_header(number, len(content)) + content
