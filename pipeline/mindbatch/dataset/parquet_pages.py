"""Unpacked bytes of the pages of a Parquet file, by their own headers: the footer need not be true."""

from __future__ import annotations

import io
from typing import BinaryIO, cast

from mindbatch.dataset.byte_streams import plain
from mindbatch.dataset.data_files import DataFile
from mindbatch.dataset.parquet_footer import RowGroup
from mindbatch.dataset.thrift_compact import NUMBER, Compact

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
