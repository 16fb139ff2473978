"""Parquet: rows come by row group as plain JSON values; what JSON does not know spoils only its own cell."""

import datetime
import json
import math
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindbatch.dataset import parquet_table
from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.dataset import Dataset
from mindbatch.dataset.parquet_pages import group_pages
from mindbatch.dataset.parquet_worker import ParquetReader
from mindbatch.dataset.records import Record
from mindbatch.dataset.rows import DataRow, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.io.children import AnsweringProcess, ChildDied, ProcessorTimeUsedUp
from mindbatch.io.errors import ConfigError, MindBatchError


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
    assert [(record.line, record.columns) for record in found] == [
        (i + 1, {"id": i, "prompt": f"p{i}"}) for i in range(2500)
    ]


UTC = datetime.timezone.utc


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (None, "é\u2028\U0001f600", "é\u2028\U0001f600"),
        (pa.large_string(), "text", "text"),
        (pa.dictionary(pa.int8(), pa.string()), "a", "a"),
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
        (pa.timestamp("ns", "Europe/Berlin"), 1_001, "1970-01-01T01:00:00.000001001+01:00"),
        (
            pa.list_(pa.struct([("a", pa.timestamp("ns")), ("b", pa.string())])),
            [{"a": -1, "b": None}, None],
            [{"a": "1969-12-31T23:59:59.999999999", "b": None}, None],
        ),
        (None, Decimal("1.50"), "1.50"),
        (None, [{"when": datetime.date(2024, 2, 29)}], [{"when": "2024-02-29"}]),
    ],
)
def test_values_become_json(tmp_path: Path, kind: pa.DataType | None, value: Any, expected: Any) -> None:
    assert read_back(tmp_path, [value, None], kind) == [expected, None]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (None, b"\x89PNG", "holds binary data; must be text"),
        (None, [{"image": b"\x89PNG"}], "holds binary data; must be text"),
        (None, datetime.timedelta(1), "holds a duration; must be a number or text"),
        (None, math.nan, "nan is no number of JSON"),
        (None, [-math.inf], "-inf is no number of JSON"),
        (pa.timestamp("s"), 253402300800, "cannot be read as timestamp[ms] (date value out of range)"),
    ],
)
def test_a_value_that_json_does_not_know_spoils_only_its_cell(
    tmp_path: Path, kind: pa.DataType | None, value: Any, reason: str
) -> None:
    table = pa.table({"prompt": ["a", "b"], "x": pa.array([value, None], kind)})
    first, second = records(tmp_path, table)
    assert (first.columns, first.error, first.unusable) == ({"prompt": "a"}, None, {"x": reason})
    assert (second.columns, second.unusable) == ({"prompt": "b", "x": None}, {})


@pytest.mark.parametrize("zone", ["Mars/Olympus", "America", "../../etc/passwd", "x" * 300, "\0", "zone.tab"])
def test_a_time_in_an_impossible_zone_spoils_only_its_cell(tmp_path: Path, zone: str) -> None:
    kind = pa.timestamp("us", zone)
    for values, of_column in (([1, None], kind), ([[1], None], pa.list_(kind))):
        reason, null = read_back(tmp_path, values, of_column)
        assert reason.startswith("cannot be read as ")
        assert f"timestamp[us, tz={zone}]" in reason
        assert null is None


def test_text_that_is_not_utf8_spoils_only_its_cell(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"\xff\xfe"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    good, bad = records(tmp_path, pa.table({"a": texts}))
    assert good.columns == {"a": "good"}
    assert bad.columns == {}
    assert "'utf-8' codec can't decode byte 0xff" in bad.unusable["a"]


LONG = "x" * 5000
LARGE_CELLS = {
    "text": pa.array([LONG, "a"]),
    "large text": pa.array([LONG, "a"], pa.large_string()),
    "shared": pa.array([LONG, "a"]).dictionary_encode(),
    "list": pa.array([["a", LONG], ["a"]]),
    "shared in a list": pa.array([["x" * 500] * 20, ["a"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    "struct": pa.array([{"a": [{"b": LONG}]}, None]),
    "map": pa.array([[("k", LONG)], None], pa.map_(pa.string(), pa.string())),
    "fixed list": pa.array([[LONG, "a"], ["b", "c"]], pa.list_(pa.string(), 2)),
    "numbers": pa.array([[0] * 5000, [0]]),
    "empty lists": pa.array([[[]] * 5000, [[]]]),
}


@pytest.mark.parametrize("cells", LARGE_CELLS.values(), ids=LARGE_CELLS)
def test_a_cell_that_is_too_large_makes_its_row_too_long(tmp_path: Path, cells: pa.Array) -> None:
    found = records(tmp_path, pa.table({"a": cells, "prompt": ["a", "b"]}))
    assert [record.error for record in found] == ["the row is longer than 1000 bytes", None]
    assert found[1].columns == {"a": cells[1].as_py(), "prompt": "b"}


@pytest.mark.parametrize("image", [LONG.encode(), [{"bytes": LONG.encode()}]], ids=["bytes", "within"])
def test_large_binary_data_spoils_only_its_cell(tmp_path: Path, image: Any) -> None:
    found = records(tmp_path, pa.table({"prompt": ["a", "b"], "image": [image, None]}))
    assert found[0].unusable == {"image": "holds binary data; must be text"}
    assert [record.columns for record in found] == [{"prompt": "a"}, {"prompt": "b", "image": None}]


def test_a_row_that_only_unpacks_to_megabytes_is_too_long(tmp_path: Path) -> None:
    offsets = pa.array([0, 10_000_000], pa.int32())
    zeros = pa.ListArray.from_arrays(offsets, pa.array(np.zeros(10_000_000, np.int8)))
    found = records(tmp_path, pa.table({"a": zeros}), compression="zstd")
    assert (tmp_path / "rows.parquet").stat().st_size < 5000
    assert [record.error for record in found] == ["the row is longer than 1000 bytes"]


@pytest.fixture
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a limit of 999 bytes, which no other test has."""
    monkeypatch.setattr(parquet_table, "_MEMORY_BYTES", 600 << 20)
    yield
    parquet_table._process(999).close()


def test_rows_that_are_too_long_are_told_one_by_one(tmp_path: Path) -> None:
    """However many there are: an answer ends after each."""
    zeros = np.zeros(4_000_000, np.int8)
    lists = pa.ListArray.from_arrays(pa.array(range(0, 4_000_001, 1_000_000), pa.int32()), pa.array(zeros))
    found = records(tmp_path, pa.table({"a": lists}), 1_500_000)
    assert [record.error for record in found] == ["the row is longer than 1500000 bytes"] * 4
    assert [record.line for record in found] == [1, 2, 3, 4]


@pytest.mark.usefixtures("_little_memory")
def test_a_row_group_that_only_unpacks_to_gigabytes_is_read_row_by_row(tmp_path: Path) -> None:
    texts = pa.array(["x" * 1_000_000, "a"])
    shared = pa.DictionaryArray.from_arrays(pa.array([*[0] * 2000, 1, 1], pa.int32()), texts)
    found = records(tmp_path, pa.table({"a": shared}), 999, row_group_size=2001, store_schema=False)
    assert (tmp_path / "rows.parquet").stat().st_size < 100_000
    too_long = "the row is longer than 999 bytes"
    assert [record.error for record in found] == [*[too_long] * 2000, None, None]


BIG = "x" * 1_000_000
SWOLLEN = {
    "texts of one row": (pa.array([[BIG] * 900, ["a"]]), {}),
    "in structs": (pa.array([[{"b": BIG}] * 900, [{"b": "a"}]]), {}),
    "deltas": (
        pa.array([*[BIG] * 100, "a"]),
        {"use_dictionary": False, "column_encoding": {"a": "DELTA_BYTE_ARRAY"}},
    ),
}


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("kind", SWOLLEN)
def test_texts_that_stand_once_and_are_many_cells_stay_so(tmp_path: Path, kind: str) -> None:
    column, options = SWOLLEN[kind]
    found = records(tmp_path, pa.table({"a": column}), 999, **options)
    assert (tmp_path / "rows.parquet").stat().st_size < 100_000
    too_long = "the row is longer than 999 bytes"
    errors = [record.error for record in found]
    if errors[-1] and kind == "deltas" and int(pa.__version__.partition(".")[0]) > 23:  # may take more memory
        assert errors[-1] == f"rows {len(errors)} to 101 cannot be read (needs more than 600 MiB of memory)"
        del errors[-1]
        assert set(errors) <= {too_long}
        return
    assert errors == [*[too_long] * (len(column) - 1), None]


@pytest.mark.slow
@pytest.mark.usefixtures("_little_memory")
def test_a_page_that_becomes_a_gigabyte_is_not_unpacked(tmp_path: Path) -> None:
    table = pa.table({"a": ["x" * (257 << 20), "b"]})
    found = records(
        tmp_path,
        table,
        999,
        row_group_size=1,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
    )
    assert (tmp_path / "rows.parquet").stat().st_size < 100_000
    assert [record.error for record in found] == [
        "row 1 cannot be read (a page of column 'a' becomes 269,484,042 bytes; at most 268,435,456 are "
        "unpacked)",
        None,
    ]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip", "lz4", "brotli"])
def test_the_headers_of_pages_are_those_that_the_footer_sums_up(
    tmp_path: Path, version: str, compression: str
) -> None:
    rows = 5000
    table = pa.table(
        {
            "a": [f"{number} " * 20 for number in range(rows)],
            "b": [[number] * (number % 5) for number in range(rows)],
            "c": [None, 1.5] * (rows // 2),
            "d": [{"e": "x" * 3000}, None] * (rows // 2),
        }
    )
    path = tmp_path / "rows.parquet"
    pq.write_table(
        table,
        path,
        data_page_version=version,
        compression=compression,
        data_page_size=4096,
        row_group_size=2000,
    )
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        about = file.metadata.row_group(group)
        for number, pages in enumerate(group_pages(file, str(path), group)):
            column = about.column(number)
            sizes = column.total_uncompressed_size
            assert 0 < pages.num_bytes < sizes < 1.2 * pages.num_bytes + 7000
            assert pages.name == column.path_in_schema
            assert pages.is_repeated == (number == 1)


@pytest.mark.parametrize(
    "damage", [b"\xff" * 64, b"\x15\x01\x15\x01", bytes(64), b"\x1c" * 64, b"\x19\xfc" + b"\xff" * 40]
)
def test_a_damaged_header_of_a_page_is_a_fault_of_its_rows(tmp_path: Path, damage: bytes) -> None:
    table = pa.table({"a": [f"text {number}" for number in range(100)]})
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4 : 4 + len(damage)] = damage
    path.write_bytes(content)
    with pytest.raises(ValueError, match="header of a page"):
        group_pages(pq.ParquetFile(path), str(path), 0)


def test_columns_nested_without_end_are_refused(tmp_path: Path) -> None:
    column = pa.array([1])
    for depth in range(100):
        if depth == 90:
            assert len(records(tmp_path, pa.table({"a": column}), store_schema=False)) == 1
        column = pa.StructArray.from_arrays([column], ["a"])
    deeper = pa.table({"a": pa.StructArray.from_arrays([column], ["a"])})
    with pytest.raises(
        ConfigError,
        match=r"rows.parquet: has a column nested 101 levels deep; at most 100 are read$"
        r"|rows.parquet: is not a Parquet file \(Parquet schema too deeply nested",  # newer Arrow's own bound
    ):
        records(tmp_path, deeper, store_schema=False)


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
    (fault,) = [record.error for record in found if record.error]
    assert fault.startswith("rows 1001 to 2000 cannot be read (")
    assert "\n" not in fault


def test_row_groups_that_end_the_reading_process_end_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = AnsweringProcess.ask

    def die(process: AnsweringProcess, request: bytes, most_bytes: int) -> Any:
        if b'"group"' in request:
            raise ProcessorTimeUsedUp if b'"group": 1' in request else ChildDied("its process ended")
        return ask(process, request, most_bytes)

    monkeypatch.setattr(AnsweringProcess, "ask", die)
    found = records(tmp_path, pa.table({"a": range(50)}), row_group_size=10)
    assert [(record.line, record.error) for record in found] == [
        (1, "rows 1 to 10 cannot be read (its process ended)"),
        (11, "rows 11 to 20 cannot be read (stopped after 10 s of processor time)"),
        (21, "rows 21 to 30 cannot be read (its process ended)"),
        (22, "3 of its row groups ended the process that read them; nothing after it was read"),
    ]


def test_columns_that_overrun_the_stack_of_arrow_end_only_the_child(tmp_path: Path) -> None:
    schema = b"\x29\xfc\xb0\xea\x01" + b"\x55\x02\x00" * 30_000  # structs of one child each
    footer = schema + b"\x00"
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ConfigError, match=r"rows.parquet: is not a Parquet file \(.+\)$"):
        Dataset(path)


def test_files_that_are_read_in_turns_give_their_rows(tmp_path: Path) -> None:
    """One process reads both, a few megabytes at a time."""
    numbers = range(7000)
    for name in "ab":
        table = pa.table({name: numbers, "text": ["x" * 1500] * len(numbers)})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=5000)
    both = [Dataset(tmp_path / f"{name}.parquet").records() for name in "ab"]
    for number, (first, second) in zip(numbers, zip(*both, strict=True), strict=True):
        assert first.columns == {"a": number, "text": "x" * 1500}
        assert second.columns == {"b": number, "text": "x" * 1500}


@pytest.mark.parametrize("index", [1, 255, -1])
def test_an_index_beyond_the_dictionary_is_found(index: int) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0, index], pa.int32()), pa.array(["a"]), safe=False)
    lists = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), texts)
    for column in (texts, lists, pa.StructArray.from_arrays([texts], ["a"])):
        with pytest.raises(pa.ArrowInvalid, match="out of bounds"):
            list(ParquetReader(1000)._batch_rows(pa.record_batch({"a": column})))


@pytest.mark.parametrize("content", [b"", b"hello", b"PAR1\x15" + b"x" * 100 + b"PAR1"])
def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Dataset(path)
    (fault,) = caught.value.lines
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


_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_CHAT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "tool_calls": [_CALL], "reasoning_content": "so"},
    {"role": "tool", "tool_call_id": "c", "content": "17"},
]


def _tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


_ROWS: list[dict[str, Any]] = [
    {"messages": _CHAT, "tools": [_tool("f"), _tool("g", a={"enum": ["x", None]}, b={"type": "integer"})]},
    {
        "messages": _CHAT[:1],
        "tools": [_tool("h", c={"type": "object", "properties": {"d": {"type": "null"}}})],
    },
    {"messages": _CHAT[:1], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": _CHAT[:1], "chat_template_kwargs": {"documents": [{"title": "a"}, {"text": "b"}]}},
    {"messages": [*_CHAT[:1], {"role": "assistant", "content": None, "tool_calls": []}, _CHAT[0]]},
    {"messages": json.dumps([{**_CHAT[0], "extra": {"a": None}}])},
]


@pytest.mark.parametrize("text", [False, True], ids=["structs", "JSON texts"])
def test_a_chat_is_the_same_from_parquet_as_from_json_lines(tmp_path: Path, text: bool) -> None:
    """Structs have all members of all rows, null where a row has none; within a text null is a value."""
    rows = [{name: json.dumps(value) for name, value in row.items()} for row in _ROWS[:-1]] + _ROWS[-1:]
    rows = rows if text else _ROWS[:-1]
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = records(tmp_path, pa.Table.from_pylist(rows, _schema(rows)), limit=100_000)
    maker = RowMaker(DataConfig(), DecodingParams(), is_openai=False)
    made = [
        [maker.make(0, record).content for record in source] for source in (Dataset(lines).records(), found)
    ]
    assert made[0] == made[1]


def _schema(rows: list[dict[str, Any]]) -> pa.Schema:
    """All columns of all rows; `from_pylist` looks at those of the first."""
    whole = {name: None for row in rows for name in row}
    return pa.Table.from_pylist([{**whole, **row} for row in rows]).schema


def test_a_request_is_the_same_from_parquet_as_from_json_lines(tmp_path: Path) -> None:
    bodies = [{"messages": _CHAT, "tools": _ROWS[0]["tools"]}, {"messages": _CHAT[:1], "max_tokens": 3}]
    rows = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for i, body in enumerate(bodies)
    ]
    maker = RowMaker(DataConfig(), DecodingParams(), is_openai=True)
    found = records(tmp_path, pa.Table.from_pylist(rows, _schema(rows)), limit=100_000)
    for row, record in zip(rows, found, strict=True):
        plain = maker.make(0, Record("rows.jsonl", 1, row))
        assert isinstance(plain, DataRow), plain
        item = maker.make(0, record)
        assert (item.content, item.overrides) == (plain.content, plain.overrides)
