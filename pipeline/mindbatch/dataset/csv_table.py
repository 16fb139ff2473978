"""Rows of a table of text: CSV (RFC 4180) and the same with tabs; the first line names the columns."""

import csv
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from mindbatch.dataset.data_files import DamagedData, DataFile, opened
from mindbatch.dataset.records import Record, columns_fault
from mindbatch.prompts.prompt_lines import EMPTY_LINE, RawLine, raw_lines, too_long_fault, utf8_fault

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
    fault: str | None


def table_rows(file: DataFile, max_row_bytes: int) -> Iterator[Record]:
    """A row from each record of the table after the first; every value is a text."""
    rows = _rows(file, max_row_bytes)
    header = next(rows, None)
    for row in rows:
        assert header is not None
        fault = row.fault or _fields_fault(row.fields, header.fields)
        columns = None if fault else dict(zip(header.fields, row.fields, strict=True))
        yield Record(file.name, row.line, columns, fault)


def table_fault(file: DataFile, max_row_bytes: int) -> str | None:
    """Explains why the file as a whole cannot be read; None if it can."""
    header = next(_rows(file, max_row_bytes), None)
    if header is None:
        return _NO_HEADER
    if header.fault or not header.fields:
        return f"the line that names the columns: {header.fault or EMPTY_LINE}"
    return columns_fault(header.fields)


def _fields_fault(fields: list[str], header: list[str]) -> str | None:
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
                yield lines.row([], too_long_fault("row", max_row_bytes))
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
        self._fault: str | None = None

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

    def row(self, fields: list[str], fault: str | None = None) -> _Row:
        fault = fault or self._fault
        if fault and self._last_line > self._first_line:
            fault += f" (lines {self._first_line} to {self._last_line})"
        return _Row(self._first_line, fields, fault)

    def _next_line(self) -> RawLine:
        line = next(self._lines)
        self._last_line = line.number
        self._count_quotes(line.content)
        return line

    def _count_quotes(self, piece: bytes) -> None:
        self._num_quotes += piece.count(b'"')

    def _text(self, content: bytes) -> str:
        """The line's text. What cannot be used spoils its row, but does not change where the row ends."""
        if b"\0" in content:
            self._fault = self._fault or "holds a NUL byte"
            content = content.replace(b"\0", b"?")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            self._fault = self._fault or utf8_fault(error)
            return content.decode("utf-8", "replace")
