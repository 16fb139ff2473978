"""Parquet: rows come by row group as plain JSON values; what JSON does not know spoils only its own cell."""

import datetime
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindbatch.dataset.dataset import Dataset
from mindbatch.dataset.records import Record
from mindbatch.errors import ConfigError, MindBatchError


def records(folder: Path, table: pa.Table, limit: int = 1000, **options: Any) -> list[Record]:
    path = folder / "rows.parquet"
    pq.write_table(table, path, **options)
    return list(Dataset(path, max_line_bytes=limit).records())


def read_back(folder: Path, values: list[Any], kind: pa.DataType | None = None) -> list[Any]:
    """What a column of these values becomes: values, or reasons why they cannot be used."""
    found = records(folder, pa.table({"a": pa.array(values, kind)}))
    return [record.columns["a"] if record.columns else record.unusable["a"] for record in found]


def test_rows_are_numbered_through_all_row_groups(tmp_path: Path) -> None:
    table = pa.table({"id": list(range(2500)), "prompt": [f"p{i}" for i in range(2500)]})
    found = records(tmp_path, table, row_group_size=1000)
    assert found == [Record("rows.parquet", i + 1, {"id": i, "prompt": f"p{i}"}) for i in range(2500)]


UTC = datetime.timezone.utc


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (None, "é\u2028\U0001f600", "é\u2028\U0001f600"),
        (pa.large_string(), "text", "text"),
        (None, True, True),
        (pa.uint64(), 2**64 - 1, 2**64 - 1),
        (pa.float32(), 0.5, 0.5),
        (pa.float16(), np.float16(1.5), 1.5),
        (None, [1, None, 3], [1, None, 3]),
        (None, [{"role": "user", "content": "Hi"}], [{"role": "user", "content": "Hi"}]),
        (pa.map_(pa.string(), pa.int32()), [("a", 1)], [["a", 1]]),
        (None, datetime.date(2024, 2, 29), "2024-02-29"),
        (None, datetime.time(1, 2, 3), "01:02:03"),
        (None, datetime.datetime(2024, 2, 29, 1, 2, 3, 4), "2024-02-29T01:02:03.000004"),
        (pa.timestamp("s", "UTC"), datetime.datetime(2024, 2, 29, tzinfo=UTC), "2024-02-29T00:00:00+00:00"),
        (pa.timestamp("ns"), 1, "1970-01-01T00:00:00.000000001"),
        (None, Decimal("1.50"), "1.50"),
        (None, [{"when": datetime.date(2024, 2, 29)}], [{"when": "2024-02-29"}]),
    ],
)
def test_values_become_json(tmp_path: Path, kind: pa.DataType | None, value: Any, expected: Any) -> None:
    assert read_back(tmp_path, [value, None], kind) == [expected, None]


def test_repeated_texts_are_read_as_texts(tmp_path: Path) -> None:
    assert read_back(tmp_path, ["a", "b", "a"], pa.dictionary(pa.int8(), pa.string())) == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (None, b"\x89PNG", "holds binary data; must be text"),
        (None, [{"image": b"\x89PNG"}], "holds binary data; must be text"),
        (None, datetime.timedelta(1), "holds a duration; must be a number or text"),
        (None, math.nan, "nan is no number of JSON"),
        (None, [-math.inf], "-inf is no number of JSON"),
        (pa.timestamp("s"), 253402300800, "cannot be read (date value out of range)"),
    ],
)
def test_a_value_that_json_does_not_know_spoils_only_its_cell(
    tmp_path: Path, kind: pa.DataType | None, value: Any, reason: str
) -> None:
    table = pa.table({"prompt": ["a", "b"], "x": pa.array([value, None], kind)})
    first, second = records(tmp_path, table)
    assert (first.columns, first.fault, first.unusable) == ({"prompt": "a"}, None, {"x": reason})
    assert (second.columns, second.unusable) == ({"prompt": "b", "x": None}, {})


def test_a_time_in_an_unknown_zone_spoils_only_its_cell(tmp_path: Path) -> None:
    (reason,) = read_back(tmp_path, [1], pa.timestamp("us", "Mars/Olympus"))
    assert reason.startswith("cannot be read (")
    assert "Mars/Olympus" in reason


def test_text_that_is_not_utf8_spoils_only_its_cell(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"\xff\xfe"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    good, bad = records(tmp_path, pa.table({"a": texts}))
    assert good.columns == {"a": "good"}
    assert bad.columns == {}
    assert "'utf-8' codec can't decode byte 0xff" in bad.unusable["a"]


def test_a_row_that_is_too_long_is_a_fault(tmp_path: Path) -> None:
    found = records(tmp_path, pa.table({"a": ["x" * 900, "x" * 1001, "y"]}))
    assert [record.fault for record in found] == [None, "the row is longer than 1000 bytes", None]


def damaged(folder: Path) -> Path:
    """Three row groups of 1,000 rows, the second one overwritten."""
    path = folder / "rows.parquet"
    texts = [uuid.UUID(int=i * 7919**9 % 2**128).hex for i in range(3000)]
    pq.write_table(pa.table({"a": texts}), path, row_group_size=1000, use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    start, size = column.data_page_offset, column.total_compressed_size
    content[start : start + size] = b"\xff" * size
    path.write_bytes(content)
    return path


def test_a_damaged_row_group_is_one_fault_and_the_others_go_on(tmp_path: Path) -> None:
    found = list(Dataset(damaged(tmp_path)).records())
    assert [record.line for record in found] == [*range(1, 1001), 1001, *range(2001, 3001)]
    (fault,) = [record.fault for record in found if record.fault]
    assert fault.startswith("rows 1001 to 2000 cannot be read (")
    assert "\n" not in fault


@pytest.mark.parametrize("content", [b"", b"hello", b"PAR1\x15" + b"x" * 100 + b"PAR1"])
def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Dataset(path)
    (fault,) = caught.value.faults
    assert fault.startswith(f"data.path: {path}: is not a Parquet file (Parquet")
    assert "\n" not in fault


def test_columns_of_one_name_and_no_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows.parquet: has more than one column 'a'$"):
        records(tmp_path, pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]))
    with pytest.raises(ConfigError, match=r"rows.parquet: has no columns$"):
        records(tmp_path, pa.table({}))


def test_a_file_that_is_gone_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    dataset = Dataset(path)
    path.unlink()
    with pytest.raises(MindBatchError, match=r"rows.parquet: cannot be read \(No such file or directory\)"):
        list(dataset.records())
