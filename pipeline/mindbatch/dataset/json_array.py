"""Rows that are the elements of one JSON array, read one after the other however long the array is.

Only the borders of the elements are found here, by their brackets, commas and quotes; each element is then
parsed as a JSON line is. So a broken element harms no other, and no more than one is ever held.
"""

import io
import re
from collections.abc import Iterator
from typing import NamedTuple

from mindbatch.dataset.data_files import BUFFER_BYTES, DataFile, opened
from mindbatch.dataset.records import Record
from mindbatch.io.strict_json import JsonFault
from mindbatch.prompts.prompt_lines import BYTE_ORDER_MARK, parse_row, too_long_fault, utf8_fault

NO_ARRAY = "holds no JSON array of objects; for an object a line, name it .jsonl or give data.format=jsonl"
_MISSING = "an element is missing beside a comma"
_TRAILING = "there is more after the end of the array"
_STRAY = "a } stands where the array should go on or end; nothing after it was read"
_UNFINISHED = "the file ends before the array does; this element is incomplete"
_BLANK = b" \t\r\n"
# The rest of a string, or of the chunk if that ends first: then group 1 is its lone backslash or empty.
# (Written so that no byte is looked at twice.)
_STRING_REST = rb'[^"\\]*(?:\\.[^"\\]*)*(?:"|(\\?)\Z)'
_IN_STRING = re.compile(_STRING_REST, re.DOTALL)
_MARKS = re.compile(rb'"' + _STRING_REST + rb"|[\[\]{},]", re.DOTALL)
_QUOTE, _COMMA, _CLOSING = b'",]'
_OPENING = b"[{"


class _Element(NamedTuple):
    """The bytes of one element, or the reason why there are none."""

    content: bytes | None
    fault: str | None = None


def array_rows(file: DataFile, max_row_bytes: int) -> Iterator[Record]:
    """A row from each element, which must be an object; their numbers from 1 stand for lines."""
    with opened(file) as stream:
        elements = _Splitter(stream, max_row_bytes).elements(_first_chunk(stream)[1:])
        for number, element in enumerate(elements, start=1):
            yield _record(file.name, number, element)


def array_fault(file: DataFile) -> str | None:
    """Explains why the file as a whole cannot be read; None if it can."""
    with opened(file) as stream:
        return None if _first_chunk(stream).startswith(b"[") else NO_ARRAY


def _first_chunk(stream: io.BufferedReader) -> bytes:
    """Reads the first chunk of the file, from its first byte that is not blank."""
    chunk = stream.peek(len(BYTE_ORDER_MARK))
    if chunk.startswith(BYTE_ORDER_MARK):
        stream.read(len(BYTE_ORDER_MARK))
    while chunk := stream.read1(BUFFER_BYTES):
        if chunk := chunk.lstrip(_BLANK):
            return chunk
    return b""


def _record(name: str, number: int, element: _Element) -> Record:
    if element.content is None:
        return Record(name, number, None, element.fault)
    try:
        return Record(name, number, parse_row(element.content.decode("utf-8")))
    except UnicodeDecodeError as error:
        return Record(name, number, None, utf8_fault(error))
    except JsonFault as fault:
        return Record(name, number, None, str(fault))


class _Splitter:
    """Finds the elements of an array whose opening bracket has been read."""

    def __init__(self, stream: io.BufferedReader, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._size = 0
        self._depth = 0
        self._in_string = self._is_escaped = False

    def elements(self, chunk: bytes) -> Iterator[_Element]:
        """Every element; `chunk` is what has been read after the bracket."""
        is_first = True
        while chunk or (chunk := self._stream.read1(BUFFER_BYTES)):
            start = 0
            for border in self._borders(chunk):
                self._keep(chunk[start:border])
                start = border + 1
                is_last = chunk[border] != _COMMA
                if not (is_last and is_first and self._is_blank()):
                    yield self._element()
                is_first = False
                if is_last:
                    yield from self._after(chunk[border], chunk[start:])
                    return
            self._keep(chunk[start:])
            chunk = b""
        yield _Element(None, _UNFINISHED)

    def _borders(self, chunk: bytes) -> Iterator[int]:
        """Yields the offsets where an element ends: at a comma, or at the bracket that closes the array."""
        for mark in _MARKS.finditer(chunk, self._end_of_string(chunk)):
            symbol = chunk[mark.start()]
            if symbol == _QUOTE:
                self._note_string(mark)
            elif symbol == _COMMA:
                if self._depth == 0:
                    yield mark.start()
            elif symbol in _OPENING:
                self._depth += 1
            elif self._depth > 0:
                self._depth -= 1
            else:
                yield mark.start()

    def _end_of_string(self, chunk: bytes) -> int:
        """Finds the end of the string that an earlier chunk began; 0 if there is none."""
        if not self._in_string:
            return 0
        rest = _IN_STRING.match(chunk, int(self._is_escaped))
        assert rest is not None, "every rest of a string matches"
        self._note_string(rest)
        return rest.end()

    def _note_string(self, match: re.Match[bytes]) -> None:
        self._in_string = match[1] is not None
        self._is_escaped = bool(match[1])

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= self._max_bytes:
            self._pieces.append(piece)

    def _is_blank(self) -> bool:
        return self._size <= self._max_bytes and not b"".join(self._pieces).strip(_BLANK)

    def _element(self) -> _Element:
        """The element that has been kept; the next one begins."""
        size, self._size = self._size, 0
        content = b"".join(self._pieces).strip(_BLANK)
        self._pieces.clear()
        if size > self._max_bytes:
            return _Element(None, too_long_fault("element", self._max_bytes))
        return _Element(content) if content else _Element(None, _MISSING)

    def _after(self, closing: int, rest: bytes) -> Iterator[_Element]:
        """A fault if the array did not end as it should, or not there."""
        if closing != _CLOSING:
            yield _Element(None, _STRAY)
            return
        while rest or (rest := self._stream.read1(BUFFER_BYTES)):
            if rest.strip(_BLANK):
                yield _Element(None, _TRAILING)
                return
            rest = b""
