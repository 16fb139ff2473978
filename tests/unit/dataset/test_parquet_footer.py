"""The footer of a Parquet file: what it says of sizes, and that a damaged or hostile one is refused here."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindbatch.dataset import parquet_footer
from mindbatch.dataset.byte_streams import DamagedData
from mindbatch.dataset.data_files import DataFile
from mindbatch.dataset.parquet_footer import read_footer

MAGIC = b"PAR1"


def file_of(path: Path) -> DataFile:
    return DataFile(path, path.name, "parquet")


def with_footer(folder: Path, footer: bytes) -> DataFile:
    path = folder / "rows.parquet"
    path.write_bytes(MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC)
    return file_of(path)


def test_sizes_are_what_arrow_says_and_what_numbers_take(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    zeros = pa.array([[0] * 500, []] * 50, pa.list_(pa.int8()))
    keys = pa.array([b"k" * 16] * 100, pa.binary(16))
    pq.write_table(pa.table({"a": ["x" * 70] * 100, "b": zeros, "c": keys}), path, row_group_size=60)
    about = pq.ParquetFile(path).metadata
    for number, group in enumerate(read_footer(file_of(path)).groups):
        texts, numbers, fixed = (about.row_group(number).column(place) for place in range(3))
        assert group.num_rows == about.row_group(number).num_rows
        assert texts.total_uncompressed_size < texts.num_values * 8  # they are one text
        assert group.unpacked_bytes == 8 * (texts.num_values + numbers.num_values) + 16 * fixed.num_values


@pytest.mark.parametrize(
    ("kind", "depth"),
    [
        (pa.int8(), 0),
        (pa.struct({"a": pa.int8(), "b": pa.struct({"c": pa.int8()})}), 2),
        (pa.list_(pa.struct({"a": pa.int8()})), 3),
    ],
)
def test_depth_is_that_of_the_deepest_column(tmp_path: Path, kind: pa.DataType, depth: int) -> None:
    table = pa.table({"a": pa.nulls(1, pa.int8()), "b": pa.nulls(1, kind), "c": pa.nulls(1, pa.int8())})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert read_footer(file_of(tmp_path / "rows.parquet")).depth == depth


def test_columns_nested_by_ten_thousands_are_counted(tmp_path: Path) -> None:
    """Arrow's reader overruns its stack over them."""
    group = b"\x55\x02\x00"  # num_children=1
    schema = b"\x29\xfc\xb0\xea\x01" + group * 30_000  # field 2: a list of 30,000 structs
    assert read_footer(with_footer(tmp_path, schema + b"\x00")).depth == 29_998


@pytest.mark.parametrize(
    ("footer", "reason"),
    [
        (b"", "is damaged"),
        (b"\x00", "is damaged"),
        (b"\x29\xfc\xff\xff\xff\xff\x0f", "is damaged"),
        (b"\x18\xff\xff\xff\xff\x0f", "is damaged"),
        (b"\x25\x02\x00", "is damaged"),
        (b"\x29\x35\x02\x02\x02\x00", "is damaged"),
        (b"\x29\x1c\x00\x29\x1c\x19\x0c\x28\x01\x00\x00\x00", "is damaged"),
        (b"\x1c" * 1000, "is damaged: it is nested too deeply"),
        (b"\x15" + b"\xff" * 1000, "is damaged: it holds a number without end"),
        (b"\x1e\x00", "is damaged: it holds values of the unknown kind 14"),
    ],
    ids=lambda case: case[:8].hex() if isinstance(case, bytes) else None,
)
def test_a_footer_that_is_none_is_refused(tmp_path: Path, footer: bytes, reason: str) -> None:
    with pytest.raises(DamagedData, match=f"^Parquet's footer {reason}$"):
        read_footer(with_footer(tmp_path, footer))


def test_a_footer_that_is_missing_or_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": np.arange(3)}), path)
    monkeypatch.setattr(parquet_footer, "_LARGEST", 10)
    with pytest.raises(DamagedData, match=r"^Parquet's footer takes \d+ bytes; at most 10 are read$"):
        read_footer(file_of(path))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamagedData, match=r"^Parquet's footer is missing$"):
        read_footer(file_of(path))
