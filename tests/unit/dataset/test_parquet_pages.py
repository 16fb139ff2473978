"""What pages unpack to is read from their own headers, whatever the footer says."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindbatch.dataset.data_files import DataFile
from mindbatch.dataset.dataset import Dataset
from mindbatch.dataset.parquet_footer import RowGroup, page_bytes, read_footer

SIZE = 100_000_000


def file_of(path: Path) -> DataFile:
    return DataFile(path, path.name, "parquet")


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_pages_of_every_column_are_found(tmp_path: Path, compression: str, version: str) -> None:
    path = tmp_path / "rows.parquet"
    texts = [f"{number % 70} {'x' * 300}" for number in range(5000)]
    table = pa.table({"a": texts, "b": [[number] for number in range(5000)], "c": pa.nulls(5000)})
    pq.write_table(
        table,
        path,
        compression=compression,
        data_page_version=version,
        row_group_size=3000,
        data_page_size=999,
    )
    about = pq.ParquetFile(path).metadata
    for number, group in enumerate(read_footer(file_of(path)).groups):
        columns = [about.row_group(number).column(place) for place in range(3)]
        whole = sum(column.total_uncompressed_size for column in columns)
        in_headers = sum(column.total_compressed_size for column in columns) if compression == "none" else 0
        found = page_bytes(file_of(path), group)
        assert whole // 2 < found < whole
        assert not in_headers or found < in_headers


def lying(path: Path) -> Path:
    """A file of a long text whose footer says that it takes 8 bytes."""
    text = "a" * SIZE
    pq.write_table(
        pa.table({"prompt": [text]}), path, compression="zstd", use_dictionary=False, write_statistics=False
    )
    content = path.read_bytes()
    size = pq.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size
    true, false = varint(2 * size, 4), varint(16, 4)
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert content.count(true, start) == 2
    path.write_bytes(content[:start] + content[start:].replace(true, false))
    return path


def varint(number: int, length: int) -> bytes:
    """In as many bytes, though fewer may do."""
    return bytes(number >> 7 * at & 127 | (128 if at < length - 1 else 0) for at in range(length))


def test_a_footer_that_lies_is_found_out(tmp_path: Path) -> None:
    path = lying(tmp_path / "rows.parquet")
    (group,) = read_footer(file_of(path)).groups
    assert group.unpacked_bytes == 8
    assert page_bytes(file_of(path), group) > SIZE
    (record,) = Dataset(path, max_line_bytes=1000).records()
    assert (
        record.fault
        == "row 1 cannot be read (95.4 MiB in 1 row; data.max_line_bytes allows 1000 bytes a row)"
    )


@pytest.mark.parametrize(
    "chunk", [range(-9, 50), range(50, 90), range(0), range(2**70, 2**70 + 5), range(3, 2**40)]
)
def test_places_without_pages_are_passed_over(tmp_path: Path, chunk: range) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"\xff" * 60)
    assert page_bytes(file_of(path), RowGroup(1, 1, (chunk,))) == 0
