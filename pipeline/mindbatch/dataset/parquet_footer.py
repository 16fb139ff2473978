"""Sizes in the footer of a Parquet file, read before Arrow sees it.

Arrow's own accessors end the process where the footer is damaged, and its reader where columns are nested by
ten thousands. The footer is a struct of Thrift's compact protocol; see parquet.thrift of Parquet's format.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from mindbatch.dataset.byte_streams import DamagedData, plain
from mindbatch.dataset.data_files import DataFile

_MOST_LEVELS = 32
"""Most levels of structs in each other."""
_MOST_BITS = 63
_TRUE, _FALSE, _BYTE, _I16, _I64, _DOUBLE = 1, 2, 3, 4, 6, 7
_BINARY, _LIST, _SET, _MAP, _STRUCT = 8, 9, 10, 11, 12

Wanted = Mapping[int, Any]
"""Fields of a struct by their numbers, each with those that are wanted of it, or of its items."""
NUMBER: Wanted = {}
"""A field that is left out where it is no number."""


class Compact:
    """Reads values from the beginning of the data; IndexError where that ends early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def place(self) -> int:
        """Offset of the next value."""
        return self._at

    def struct(self, wanted: Wanted) -> dict[int, Any]:
        """The wanted fields of a struct.

        Raises:
            ValueError: a kind of value that there is not, or structs within each other without end.
        """
        return self._struct(wanted, 0)

    def _value(self, kind: int, wanted: Wanted | None, level: int) -> Any:
        """The next value, of a struct the wanted fields; None where nothing is wanted."""
        if level > _MOST_LEVELS:
            raise ValueError("it is nested too deeply")
        if kind in (_TRUE, _FALSE):  # within a list
            return self._byte() == _TRUE
        if kind == _BYTE:
            return self._byte()
        if _I16 <= kind <= _I64:
            return self._zigzag()
        if kind in (_DOUBLE, _BINARY):
            size = 8 if kind == _DOUBLE else self._varint()
            self._at += size
            return None
        if kind in (_LIST, _SET):
            return self._list(wanted, level)
        if kind == _MAP:
            return self._skip_map(level)
        if kind == _STRUCT:
            return self._struct(wanted, level)
        raise ValueError(f"it holds values of the unknown kind {kind}")

    def _struct(self, wanted: Wanted | None, level: int) -> dict[int, Any]:
        values, number = {}, 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._zigzag()
            within = None if wanted is None else wanted.get(number)
            value = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, within, level + 1)
            if within or (within is not None and isinstance(value, int)):
                values[number] = value
        return values

    def _list(self, wanted: Wanted | None, level: int) -> list[Any] | None:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == 15:
            count = self._varint()
        items = (self._value(kind, wanted, level + 1) for _ in range(count))
        if wanted is not None:
            return list(items)
        for _ in items:
            pass
        return None

    def _skip_map(self, level: int) -> None:
        count = self._varint()
        kinds = self._byte() if count else 0
        for _ in range(count):
            self._value(kinds >> 4, None, level + 1)
            self._value(kinds & 15, None, level + 1)

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > _MOST_BITS:
                raise ValueError("it holds a number without end")
        return value | byte << shift

    def _zigzag(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)


_SIZES = {2: NUMBER, 3: NUMBER}  # uncompressed_page_size, compressed_page_size
_USUAL_HEADER, _LONGEST_HEADER = 1 << 9, 1 << 20
_MOST_PAGES = 100_000


def page_bytes(file: DataFile, group: RowGroup) -> int:
    """The sum over all pages of a row group whose headers can be read.

    Raises:
        MindBatchError: the disk fails.
    """
    with plain(file.path) as disk:
        return sum(_bytes_within(cast(BinaryIO, disk), chunk) for chunk in group.chunks)


def _bytes_within(disk: BinaryIO, chunk: range) -> int:
    total, place, end = 0, chunk.start, min(chunk.stop, disk.seek(0, io.SEEK_END))
    for _ in range(_MOST_PAGES):
        if not 0 <= place < end:
            break
        try:
            header, unpacked, packed = _page(disk, place)
        except (IndexError, KeyError, ValueError):  # Arrow says what is wrong with it
            break
        total += max(0, unpacked)
        place += header + max(0, packed)
    return total


def _page(disk: BinaryIO, place: int) -> tuple[int, int, int]:
    """The bytes of a page's header, and those of what is in it, unpacked and packed."""
    length = _USUAL_HEADER
    while True:
        disk.seek(place)
        reader = Compact(disk.read(length))
        try:
            sizes = reader.struct(_SIZES)
        except IndexError:  # statistics may be long
            length *= 8
            if length > _LONGEST_HEADER:
                raise
        else:
            return reader.place, sizes[2], sizes[3]


_MAGIC = b"PAR1"
_LARGEST = 16 << 20
_TRAILER = 4 + len(_MAGIC)
_NUMBER_BYTES = 8
_FIXED_LENGTH = 7  # a leaf's type

_ELEMENT = {1: NUMBER, 2: NUMBER, 5: NUMBER}  # type, type_length, num_children
# num_values, total_uncompressed_size, total_compressed_size, data_page_offset, dictionary_page_offset
_META_DATA = dict.fromkeys((5, 6, 7, 9, 11), NUMBER)
_FILE = {2: _ELEMENT, 4: {1: {3: _META_DATA}, 3: NUMBER}}  # schema, row_groups: columns: meta_data; num_rows


@dataclass(frozen=True, slots=True)
class RowGroup:
    """unpacked_bytes: of all its columns, each value of a number or of fixed length counted. chunks: where in
    the file the pages of each column are."""

    num_rows: int
    unpacked_bytes: int
    chunks: tuple[range, ...]


@dataclass(frozen=True, slots=True)
class Footer:
    """depth: of the groups and lists that a column is nested in, at most."""

    depth: int
    groups: tuple[RowGroup, ...]


def read_footer(file: DataFile) -> Footer:
    """The footer of a file.

    Raises:
        DamagedData: it is none, or larger than is read.
        MindBatchError: the disk fails.
    """
    try:
        fields = Compact(_footer_bytes(file)).struct(_FILE)
        return _footer(fields[2], fields.get(4, []))
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise DamagedData("Parquet's footer is damaged") from error
    except ValueError as error:
        raise DamagedData(f"Parquet's footer is damaged: {error}") from error


def _footer_bytes(file: DataFile) -> bytes:
    with plain(file.path) as disk:
        size = disk.seek(0, io.SEEK_END)
        disk.seek(max(0, size - _TRAILER))
        trailer = disk.read(_TRAILER)
        length = int.from_bytes(trailer[:4], "little")
        if trailer[4:] != _MAGIC or length > size - _TRAILER:
            raise DamagedData("Parquet's footer is missing")
        if length > _LARGEST:
            raise DamagedData(f"Parquet's footer takes {length} bytes; at most {_LARGEST} are read")
        disk.seek(size - _TRAILER - length)
        return disk.read(length)


def _footer(schema: list[dict[int, int]], groups: list[dict[int, Any]]) -> Footer:
    leaves = [element for element in schema[1:] if not element.get(5)]
    widths = [leaf.get(2, 0) if leaf.get(1) == _FIXED_LENGTH else _NUMBER_BYTES for leaf in leaves]
    return Footer(_depth(schema), tuple(_row_group(group, widths) for group in groups))


def _depth(schema: list[dict[int, int]]) -> int:
    """Depth of the schema, whose elements stand in depth-first order, each with its number of children."""
    depth, waiting = 0, [1]
    for element in schema:
        while waiting and waiting[-1] <= 0:
            waiting.pop()
        if not waiting:
            break
        waiting[-1] -= 1
        waiting.append(element.get(5, 0))
        depth = max(depth, len(waiting) - 3)
    return depth


def _row_group(group: dict[int, Any], widths: list[int]) -> RowGroup:
    chunks = [chunk[3] for chunk in group[1]]
    sizes = (max(chunk[6], chunk[5] * width) for chunk, width in zip(chunks, widths, strict=False))
    return RowGroup(group[3], sum(sizes), tuple(map(_pages, chunks)))


def _pages(chunk: dict[int, int]) -> range:
    start = min(filter(None, (chunk[9], chunk.get(11))), default=0)
    return range(start, start + chunk[7])
