"""Sizes in the footer of a Parquet file, read before Arrow sees it.

Arrow's own accessors end the process where the footer is damaged, and its reader where columns are nested by
ten thousands. The footer is a struct of Thrift's compact protocol; see parquet.thrift of Parquet's format.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from mindbatch.dataset.byte_streams import DamagedData, plain
from mindbatch.dataset.data_files import DataFile
from mindbatch.dataset.thrift_compact import NUMBER, Compact

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
