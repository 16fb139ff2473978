"""What the footer of a Parquet file says of sizes, read before Arrow sees it.

Arrow's own accessors end the process where the footer is damaged, and its reader where columns are nested by
ten thousands. The footer is a struct of Thrift's compact protocol; see parquet.thrift of Parquet's format.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindbatch.dataset.byte_streams import DamagedData, plain
from mindbatch.dataset.data_files import DataFile

_MAGIC = b"PAR1"
_LARGEST = 16 << 20
_TRAILER = 4 + len(_MAGIC)
_MOST_LEVELS = 32
"""Of structs in each other, of the footer itself."""
_MOST_BITS = 63
_NUMBER_BYTES = 8
_FIXED_LENGTH = 7  # a leaf's type

_TRUE, _FALSE, _BYTE, _I16, _I64, _DOUBLE = 1, 2, 3, 4, 6, 7
_BINARY, _LIST, _SET, _MAP, _STRUCT = 8, 9, 10, 11, 12
_ALL: Mapping[int, Any] = {}
_ELEMENT = {1: _ALL, 2: _ALL, 5: _ALL}  # type, type_length, num_children
_CHUNK = {3: {5: _ALL, 6: _ALL}}  # meta_data: num_values, total_uncompressed_size
_FILE = {2: _ELEMENT, 4: {1: _CHUNK, 3: _ALL}}  # schema, row_groups: columns, num_rows


@dataclass(frozen=True, slots=True)
class RowGroup:
    """unpacked_bytes: of all its columns, each value of a number or of fixed length counted."""

    num_rows: int
    unpacked_bytes: int


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
        fields = _Compact(_footer_bytes(file)).value(_STRUCT, _FILE)
        return _footer(fields[2], fields.get(4, []))
    except (IndexError, KeyError, TypeError) as error:
        raise DamagedData("Parquet's footer is damaged") from error


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
    """Its elements stand in depth-first order, each with the number of its children."""
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
    return RowGroup(group[3], sum(sizes))


class _Compact:
    """Reads values of Thrift's compact protocol; IndexError where the data ends early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def value(self, kind: int, wanted: Mapping[int, Any] | None, level: int = 0) -> Any:
        """The next value, of a struct the wanted fields; None where nothing is wanted.

        Raises:
            DamagedData: a kind that there is not, or structs within each other without end.
        """
        if level > _MOST_LEVELS:
            raise DamagedData("Parquet's footer is nested too deeply")
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
        raise DamagedData(f"Parquet's footer holds values of the unknown kind {kind}")

    def _struct(self, wanted: Mapping[int, Any] | None, level: int) -> dict[int, Any]:
        found, number = {}, 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._zigzag()
            within = None if wanted is None else wanted.get(number)
            value = kind == _TRUE if kind in (_TRUE, _FALSE) else self.value(kind, within, level + 1)
            if within is not None:
                found[number] = value
        return found

    def _list(self, wanted: Mapping[int, Any] | None, level: int) -> list[Any] | None:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == 15:
            count = self._varint()
        items = (self.value(kind, wanted, level + 1) for _ in range(count))
        if wanted is not None:
            return list(items)
        for _ in items:
            pass
        return None

    def _skip_map(self, level: int) -> None:
        count = self._varint()
        kinds = self._byte() if count else 0
        for _ in range(count):
            self.value(kinds >> 4, None, level + 1)
            self.value(kinds & 15, None, level + 1)

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > _MOST_BITS:
                raise DamagedData("Parquet's footer holds a number without end")
        return value | byte << shift

    def _zigzag(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)
