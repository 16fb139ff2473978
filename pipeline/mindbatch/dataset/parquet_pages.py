"""Reads the headers of a Parquet file's pages, for the size of each page before it is unpacked.

The footer has sizes too, but Arrow unpacks by the page's own header. Imported by `parquet_worker`.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow.parquet

_MAX_PAGE_BYTES = 256 << 20
_MAX_BYTES = 1 << 30
"""Maximum size of the largest pages of all columns, which are unpacked at the same time."""
_MAX_REPEATED_VALUES = 1 << 24
"""Maximum number of values of a page of lists, which may all belong to one row and take hardly any bytes."""
_BATCH_BYTES = 32 << 20
"""Maximum size of the cells of a batch that share bytes in a page and get their own in memory."""
_HEADER_BYTES = (1 << 10, 1 << 14, 1 << 18, 1 << 22)
_MAX_DEPTH = 16
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_DELTA_BYTE_ARRAY = 7


@dataclass
class ColumnPages:
    """Sizes of the pages of a column in a row group.

    max_values: the maximum number of values of a page, or the average of a row if that is larger.
    dictionary, deltas: bytes of the largest page in which many cells share one text.
    """

    name: str
    is_repeated: bool
    num_bytes: int = 0
    largest: int = 0
    dictionary: int = 0
    deltas: int = 0
    max_values: int = 0


def group_pages(table: "pyarrow.parquet.ParquetFile", path: str, group: int) -> list[ColumnPages]:
    """Returns the page sizes of each column of a row group.

    Raises:
        ValueError: in one line: the pages exceed a maximum, or a header is damaged.
    """
    about = table.metadata.row_group(group)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        columns = [
            _pages_of(file, about.column(number), table.schema.column(number).max_repetition_level > 0)
            for number in range(about.num_columns)
        ]
        for number, column in enumerate(columns):
            in_a_row = about.column(number).num_values // max(1, about.num_rows)
            column.max_values = max(column.max_values, in_a_row)
    finally:
        os.close(file)
    _refuse_large(columns)
    return columns


def batch_rows(columns: list[ColumnPages], num_rows: int, max_rows: int, max_bytes: int) -> int:
    """Returns the number of rows that Arrow may unpack at a time within `max_bytes`."""
    total = sum(column.num_bytes for column in columns)
    deltas = sum(column.deltas for column in columns)
    rows = min(max_bytes * num_rows // max(1, total), _BATCH_BYTES // max(1, deltas))
    return min(max_rows, max(1, rows))


def dictionary_columns(columns: list[ColumnPages], num_rows: int) -> list[str]:
    """Returns the columns that Arrow must keep as indices into their dictionary, in batches of `num_rows`.

    With bytes of their own their cells would exceed the size of a batch.
    """
    return [
        column.name
        for column in columns
        if column.dictionary * (column.max_values if column.is_repeated else num_rows) > _BATCH_BYTES
    ]


def _refuse_large(columns: list[ColumnPages]) -> None:
    for column in columns:
        if column.largest > _MAX_PAGE_BYTES:
            raise ValueError(
                f"a page of column {column.name[:100]!a} becomes {column.largest:,} bytes; at most "
                f"{_MAX_PAGE_BYTES:,} are unpacked"
            )
        if column.is_repeated and column.max_values > _MAX_REPEATED_VALUES:
            raise ValueError(
                f"a page or row of column {column.name[:100]!a} has {column.max_values:,} values of lists; "
                f"at most {_MAX_REPEATED_VALUES:,} are read"
            )
    if (total := sum(column.largest for column in columns)) > _MAX_BYTES:
        raise ValueError(f"its pages become {total:,} bytes at a time; at most {_MAX_BYTES:,} are unpacked")


def _pages_of(file: int, about: Any, is_repeated: bool) -> ColumnPages:
    pages = ColumnPages(about.path_in_schema, is_repeated)
    for header in _headers(file, about):
        size = header[2]
        pages.num_bytes += size
        pages.largest = max(pages.largest, size)
        values = header.get(5) or header.get(8) or {}
        pages.max_values = max(pages.max_values, values.get(1, 0))
        encoding = values.get(2 if header[1] == _DATA_PAGE else 4)
        if header[1] == _DICTIONARY_PAGE and about.physical_type == "BYTE_ARRAY":
            pages.dictionary = size
        if encoding == _DELTA_BYTE_ARRAY:
            pages.deltas = max(pages.deltas, size)
    return pages


def _headers(file: int, about: Any) -> Iterator[dict[int, Any]]:
    """Yields the header of each page that Arrow would read, as values by field number."""
    offset = about.data_page_offset
    if about.has_dictionary_page and 0 < about.dictionary_page_offset < offset:
        offset = about.dictionary_page_offset
    end, left = offset + about.total_compressed_size, about.num_values
    while offset < end and left > 0:
        header, length = _header_at(file, offset)
        if header[2] < 0 or header[3] < 0:
            raise ValueError("the header of a page has a negative size")
        yield header
        if header[1] in (_DATA_PAGE, _DATA_PAGE_V2):
            left -= (header.get(5) or header.get(8) or {}).get(1, 0)
        offset += length + header[3]


def _header_at(file: int, offset: int) -> tuple[dict[int, Any], int]:
    """Returns the header at an offset in the file, and its length; its statistics may have any size."""
    for size in _HEADER_BYTES:
        data = os.pread(file, size, offset)
        try:
            reader = _Compact(data)
            header = reader.struct()
        except IndexError:
            continue
        if all(isinstance(header.get(field), int) for field in (1, 2, 3)):
            return header, reader.offset
        break
    raise ValueError("the header of a page is damaged")


class _Compact:
    """Thrift's compact protocol (thrift/doc/specs/thrift-compact-protocol.md), of which all kinds are read.

    Raises IndexError where the data ends, and ValueError where it is none.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.offset = 0
        self._kinds: dict[int, Callable[[int], Any]] = {
            1: lambda depth: True,
            2: lambda depth: False,
            3: lambda depth: self._byte(),
            **dict.fromkeys((4, 5, 6), lambda depth: self._number()),
            7: lambda depth: self._skip(8),
            8: lambda depth: self._skip(self._varint()),
            **dict.fromkeys((9, 10), self._list),
            11: self._map,
            12: self.struct,
        }

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Returns the fields of a struct by their numbers; texts and lists are skipped."""
        if depth > _MAX_DEPTH:
            raise ValueError("the header of a page is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._number()
            fields[number] = self._value(head & 15, depth + 1)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind not in self._kinds:
            raise ValueError("the header of a page is damaged")
        return self._kinds[kind](depth)

    def _byte(self) -> int:
        self.offset += 1
        return self._data[self.offset - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise ValueError("the header of a page is damaged")

    def _number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, size: int) -> None:
        self.offset += size
        if self.offset > len(self._data):
            raise IndexError

    def _list(self, depth: int) -> None:
        head = self._byte()
        size = head >> 4 if head >> 4 < 15 else self._varint()
        for _ in range(size):
            self._element(head & 15, depth)

    def _map(self, depth: int) -> None:
        if size := self._varint():
            kinds = self._byte()
            for _ in range(size):
                self._element(kinds >> 4, depth)
                self._element(kinds & 15, depth)

    def _element(self, kind: int, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise ValueError("the header of a page is nested too deeply")
        if kind in (1, 2):  # within lists a truth value has a byte
            self._byte()
        else:
            self._value(kind, depth + 1)
