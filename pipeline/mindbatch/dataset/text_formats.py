"""Rows of text: a JSON object or a prompt a line, CSV (RFC 4180) or the same with tabs, one JSON array.

The first line of a table names its columns. Of an array only the borders of the elements are found here, by
their brackets, commas and quotes; each element is then parsed as a JSON line is. So a broken element harms no
other, and no more than one is ever held.
"""

import csv
import io
import re
from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO, NamedTuple

from mindbatch.dataset.data_files import BUFFER_BYTES, DamagedData, DataFile, opened
from mindbatch.dataset.records import Record, columns_error
from mindbatch.io.strict_json import JsonError
from mindbatch.prompts.prompt_lines import (
    BYTE_ORDER_MARK,
    EMPTY_LINE,
    RawLine,
    parse_row,
    raw_lines,
    text_lines,
    too_long_error,
    utf8_error,
)

TEXT_COLUMN = "prompt"


def json_line_rows(file: DataFile, max_line_bytes: int) -> Iterator[Record]:
    """Yields a row from each line, which must hold a JSON object."""
    with opened(file) as stream:
        for line in text_lines(stream, max_line_bytes):
            if line.text is None:
                yield Record(file.name, line.number, None, line.error)
            else:
                yield _object(file.name, line.number, line.text)


def text_rows(file: DataFile, max_line_bytes: int) -> Iterator[Record]:
    """Yields a row from each line, whose text is its one column: the prompt."""
    with opened(file) as stream:
        for line in text_lines(stream, max_line_bytes):
            columns = None if line.text is None else {TEXT_COLUMN: line.text}
            yield Record(file.name, line.number, columns, line.error)


def _object(name: str, number: int, text: str) -> Record:
    try:
        return Record(name, number, parse_row(text))
    except JsonError as error:
        return Record(name, number, None, str(error))


DELIMITERS = {"csv": ",", "tsv": "\t"}
_NO_HEADER = "is empty; its first line must name the columns"
_REASONS = {  # what csv.Error says, and what is said here
    "unexpected end of data": "a quoted field is never closed",
    "new-line character seen in unquoted field": "a carriage return stands outside quotes",
}


class _Row(NamedTuple):
    """The fields of one row and the line on which it begins, or why there are no fields."""

    line: int
    fields: list[str]
    error: str | None


def table_rows(file: DataFile, max_row_bytes: int) -> Iterator[Record]:
    """Yields a row from each record of the table after the first; every value is a text."""
    rows = _rows(file, max_row_bytes)
    header = next(rows, None)
    for row in rows:
        assert header is not None
        error = row.error or _fields_error(row.fields, header.fields)
        columns = None if error else dict(zip(header.fields, row.fields, strict=True))
        yield Record(file.name, row.line, columns, error)


def table_error(file: DataFile, max_row_bytes: int) -> str | None:
    """Explains why the file as a whole cannot be read; None if it can."""
    header = next(_rows(file, max_row_bytes), None)
    if header is None:
        return _NO_HEADER
    if header.error or not header.fields:
        return f"the line that names the columns: {header.error or EMPTY_LINE}"
    return columns_error(header.fields)


def _fields_error(fields: list[str], header: list[str]) -> str | None:
    if len(fields) == len(header):
        return None
    if not fields:
        return EMPTY_LINE
    count = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
    return f"holds {count}; the first line names {len(header)} columns"


def _rows(file: DataFile, max_row_bytes: int) -> Iterator[_Row]:
    # The limit is one of the whole process, and by default lower than that on rows here.
    csv.field_size_limit(max(csv.field_size_limit(), max_row_bytes))
    with opened(file) as stream:
        lines = _RowLines(stream, max_row_bytes)
        reader = csv.reader(lines, delimiter=DELIMITERS[file.format], strict=True)
        while True:
            lines.begin_row()
            try:
                yield lines.row(next(reader))
            except StopIteration:
                return
            except csv.Error as error:
                yield lines.row([], _reason(error))
            except _TooLong:
                lines.skip_row()
                yield lines.row([], too_long_error("row", max_row_bytes))
            except DamagedData as damage:
                yield lines.row([], str(damage))
                return


def _reason(error: csv.Error) -> str:
    message = str(error)
    return next(
        (reason for start, reason in _REASONS.items() if message.startswith(start)),
        f"not valid CSV: {message}".replace("\t", "\\t"),
    )


class _TooLong(Exception):
    """A row has more bytes than are allowed."""


class _RowLines:
    """The lines of a file as csv.reader takes them, and where the row begins that it is reading."""

    def __init__(self, stream: BinaryIO, max_row_bytes: int) -> None:
        self._lines = raw_lines(stream, max_row_bytes, self._count_quotes)
        self._max_size = max_row_bytes + len(b"\r\n")
        self._last_line = 0
        self.begin_row()

    def begin_row(self) -> None:
        self._first_line = self._last_line + 1
        self._size = self._num_quotes = 0
        self._error: str | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._next_line()
        self._size += len(line.content)
        if line.too_long or self._size > self._max_size:
            raise _TooLong
        return self._text(line.content)

    def skip_row(self) -> None:
        """Leaves out the lines up to the end of the row: where quotes are even in number, no field is open.

        What is within a field would pass for rows otherwise.
        """
        while self._num_quotes % 2:
            try:
                self._next_line()
            except StopIteration:
                return

    def row(self, fields: list[str], error: str | None = None) -> _Row:
        error = error or self._error
        if error and self._last_line > self._first_line:
            error += f" (lines {self._first_line} to {self._last_line})"
        return _Row(self._first_line, fields, error)

    def _next_line(self) -> RawLine:
        line = next(self._lines)
        self._last_line = line.number
        self._count_quotes(line.content)
        return line

    def _count_quotes(self, part: bytes) -> None:
        self._num_quotes += part.count(b'"')

    def _text(self, content: bytes) -> str:
        """Returns the line's text. What cannot be used spoils its row, but does not change where the row
        ends."""
        if b"\0" in content:
            self._error = self._error or "holds a NUL byte"
            content = content.replace(b"\0", b"?")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            self._error = self._error or utf8_error(error)
            return content.decode("utf-8", "replace")


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

_Element = bytes | str
"""The bytes of one element, or as text the reason why there are none."""


def array_rows(file: DataFile, max_row_bytes: int) -> Iterator[Record]:
    """Yields a row from each element, which must be an object; their numbers from 1 stand for lines."""
    with opened(file) as stream:
        others = iter(lambda: stream.read1(BUFFER_BYTES), b"")
        chunks = chain([_first_chunk(stream)[1:]], others)
        for number, element in enumerate(_elements(chunks, max_row_bytes), start=1):
            yield _record(file.name, number, element)


def array_error(file: DataFile) -> str | None:
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
    if isinstance(element, str):
        return Record(name, number, None, element)
    try:
        text = element.decode("utf-8")
    except UnicodeDecodeError as error:
        return Record(name, number, None, utf8_error(error))
    return _object(name, number, text)


def _elements(chunks: Iterator[bytes], max_bytes: int) -> Iterator[_Element]:
    """Yields every element of an array whose opening bracket has been read, and errors of its end."""
    parts: list[bytes] = []
    size = start = num_elements = 0
    for chunk, end in _borders(chunks):
        size += end - start
        if size <= max_bytes:
            parts.append(chunk[start:end])
        start = 0
        if end == len(chunk):
            continue
        start, closing = end + 1, chunk[end]
        content = b"".join(parts).strip(_BLANK)
        if size > max_bytes:
            yield too_long_error("element", max_bytes)
        elif content or closing == _COMMA or num_elements:
            yield content or _MISSING
        if closing != _COMMA:
            yield from _after(closing, chain([chunk[start:]], chunks))
            return
        parts.clear()
        size, num_elements = 0, num_elements + 1
    yield _UNFINISHED


def _borders(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yields where an element ends, at a comma or the bracket that closes the array, with its chunk; and the
    end of each chunk."""
    depth, in_string, is_escaped = 0, False, False
    for chunk in chunks:
        first = 0
        if in_string:
            rest = _IN_STRING.match(chunk, int(is_escaped))
            assert rest is not None, "every rest of a string matches"
            in_string, is_escaped, first = rest[1] is not None, bool(rest[1]), rest.end()
        for mark in _MARKS.finditer(chunk, first):
            symbol = chunk[mark.start()]
            if symbol == _QUOTE:
                in_string, is_escaped = mark[1] is not None, bool(mark[1])
            elif symbol in _OPENING:
                depth += 1
            elif depth == 0:
                yield chunk, mark.start()
            elif symbol != _COMMA:
                depth -= 1
        yield chunk, len(chunk)


def _after(closing: int, rest: Iterator[bytes]) -> Iterator[_Element]:
    """Yields an error if the array did not end as it should, or not there."""
    if closing != _CLOSING:
        yield _STRAY
    elif any(chunk.strip(_BLANK) for chunk in rest):
        yield _TRAILING
