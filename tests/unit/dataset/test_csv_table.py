"""CSV and TSV: a row for each record, told by its first line; a broken one gives no false rows."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.dataset.dataset import Dataset
from mindbatch.dataset.records import Record
from mindbatch.io.errors import ConfigError


def records(folder: Path, content: bytes | str, name: str = "rows.csv", limit: int = 1000) -> list[Record]:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(Dataset(path, max_line_bytes=limit).records())


def outcomes(folder: Path, content: bytes | str, **options: Any) -> list[tuple[int, Any]]:
    found = records(folder, content, **options)
    return [(record.line, record.columns if record.error is None else record.error) for record in found]


def test_rows_are_told_by_the_line_they_begin_on(tmp_path: Path) -> None:
    content = 'id,prompt\r\n1,"two\r\nlines, and ""quotes"""\r\n2,\r\n"3",é\u2028\r\n'
    assert outcomes(tmp_path, content) == [
        (2, {"id": "1", "prompt": 'two\r\nlines, and "quotes"'}),
        (4, {"id": "2", "prompt": ""}),
        (5, {"id": "3", "prompt": "é\u2028"}),
    ]


def test_tabs_in_tsv(tmp_path: Path) -> None:
    content = 'id\tprompt\n1\ta, b\n2\t"a\tb"\n"3"x\ty\n'
    assert outcomes(tmp_path, content, name="rows.tsv") == [
        (2, {"id": "1", "prompt": "a, b"}),
        (3, {"id": "2", "prompt": "a\tb"}),
        (4, r"""not valid CSV: '\t' expected after '"'"""),
    ]


def test_byte_order_mark_and_no_final_newline(tmp_path: Path) -> None:
    assert outcomes(tmp_path, "\ufeffa,b\n1,2") == [(2, {"a": "1", "b": "2"})]
    assert outcomes(tmp_path, '\ufeff"a",b\n') == []


BAD: list[tuple[str, bytes, str]] = [
    ("missing field", b"1", "holds 1 field; the first line names 2 columns"),
    ("extra field", b"1,2,3", "holds 3 fields; the first line names 2 columns"),
    ("blank", b"", "the line is empty"),
    ("invalid UTF-8", b"1,\xff", "not valid UTF-8: byte 0xff at position 2"),
    ("NUL", b"1,\0", "holds a NUL byte"),
    ("text after quotes", b'"1"x,2', "not valid CSV: ',' expected after '\"'"),
    ("carriage return", b"1,a\rb", "a carriage return stands outside quotes"),
    ("too long", b"1," + b"x" * 1000, "the row is longer than 1000 bytes"),
    (
        "too long with lines within",
        b'1,"' + b"x\n2,x\n" * 200 + b'"',
        "the row is longer than 1000 bytes (lines 3 to 403)",
    ),
    (
        "a long line within quotes",
        b'1,"x\n' + b"x" * 1500 + b'\n2,x"',
        "the row is longer than 1000 bytes (lines 3 to 5)",
    ),
    (
        "quotes in what is too long",
        b'1,"' + b"x" * 1500 + b'\n2,x"',
        "the row is longer than 1000 bytes (lines 3 to 4)",
    ),
    ("quotes beyond what is kept", b"1," + b"x" * 1500 + b'"y"', "the row is longer than 1000 bytes"),
    ("the quotes' end beyond what is kept", b'1,"' + b"x" * 1500 + b'"', "the row is longer than 1000 bytes"),
    ("UTF-8 on a later line", b'1,"\n\xff\n"', "not valid UTF-8: byte 0xff at position 0 (lines 3 to 5)"),
]


@pytest.mark.parametrize(("row", "reason"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_bad_row_harms_no_other_and_gives_no_false_ones(tmp_path: Path, row: bytes, reason: str) -> None:
    content = b"id,prompt\n1,before\n" + row + b"\n3,after\n"
    before, bad, after = outcomes(tmp_path, content)
    assert before == (2, {"id": "1", "prompt": "before"})
    assert bad == (3, reason)
    assert after == (3 + row.count(b"\n") + 1, {"id": "3", "prompt": "after"})


def test_quotes_that_are_never_closed_say_which_lines_they_took(tmp_path: Path) -> None:
    assert outcomes(tmp_path, 'a\n1\n"2\n3\n4\n') == [
        (2, {"a": "1"}),
        (3, "a quoted field is never closed (lines 3 to 5)"),
    ]
    assert outcomes(tmp_path, 'a\n"' + "x\n" * 2000) == [
        (2, "the row is longer than 1000 bytes (lines 2 to 2001)")
    ]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "is empty; its first line must name the columns"),
        (b"a,b,a,b,c\n", "has more than one column 'a', 'b'"),
        (b"a,\xff\n", "the line that names the columns: not valid UTF-8: byte 0xff at position 2"),
        (b'a,"b\n', "the line that names the columns: a quoted field is never closed"),
        (b"\na,b\n", "the line that names the columns: the line is empty"),
        (b"a" * 1001, "the line that names the columns: the row is longer than 1000 bytes"),
    ],
)
def test_a_table_without_usable_columns_is_refused_as_a_whole(
    tmp_path: Path, content: bytes, fault: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        records(tmp_path, content)
    assert caught.value.lines == (f"data.path: {tmp_path}/rows.csv: {fault}",)


def test_fields_longer_than_the_csv_module_expects(tmp_path: Path) -> None:
    text = "x" * 200_000
    assert outcomes(tmp_path, f"a\n{text}\n", limit=10**6) == [(2, {"a": text})]


@given(st.lists(st.tuples(*[st.text(st.sampled_from('a",\t\n\r é\u2028'), max_size=6)] * 2), max_size=6))
def test_what_the_csv_module_writes_is_read_back(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    for name, dialect in (("rows.csv", "excel"), ("rows.tsv", "excel-tab")):
        written = io.StringIO(newline="")
        csv.writer(written, dialect).writerows([("a", "b"), *rows])
        found = records(tmp_path, written.getvalue(), name=name)
        assert [record.columns for record in found] == [{"a": first, "b": second} for first, second in rows]
