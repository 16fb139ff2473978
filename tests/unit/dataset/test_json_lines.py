"""JSON lines: each line is good or bad alone, told by its number; nothing is guessed, nothing large held."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.dataset.dataset import Dataset
from mindbatch.dataset.records import Record
from mindbatch.prompts.prompt_lines import MAX_DEPTH, parse_row

GOOD = b'{"id": 1, "prompt": "two"}'
LIMIT = 1000

BAD: list[tuple[str, bytes, str]] = [
    ("invalid UTF-8", b'{"a": "\xff"}', "not valid UTF-8: byte 0xff at position 7"),
    ("cut-off UTF-8", b'{"a": "\xe4\xbd"}', "not valid UTF-8: byte 0xe4 at position 7"),
    ("surrogate in UTF-8", b'{"a": "\xed\xa0\x80"}', "not valid UTF-8: byte 0xed at position 7"),
    ("NaN", b'{"a": NaN}', "NaN is no number of JSON"),
    ("Infinity", b'{"a": [-Infinity]}', "-Infinity is no number of JSON"),
    ("too large a float", b'{"a": 1e999}', "the number '1e999' is too large for 64 bits"),
    (
        "lone surrogate",
        b'{"a": "x\\ud800"}',
        "value.a: is not valid Unicode: lone surrogate U+D800 at character 1",
    ),
    (
        "lone low surrogate, nested",
        b'{"a": {"b": ["\\uDC01"]}}',
        "value.a.b[0]: is not valid Unicode: lone surrogate U+DC01 at character 0",
    ),
    (
        "lone surrogate in a name within",
        b'{"a": {"\\ud800": 1}}',
        "value.a: key '\\ud800' is not valid Unicode: lone surrogate U+D800 at character 0",
    ),
    (
        "lone surrogate in a name",
        b'{"\\ud800": 1}',
        "value: key '\\ud800' is not valid Unicode: lone surrogate U+D800 at character 0",
    ),
    (
        "30-digit int",
        b'{"a": 123456789012345678901234567890}',
        "the whole number '123456789012345678901234567890' does not fit 64 bits; give it as text",
    ),
    (
        "65 bits",
        b'{"a": 18446744073709551616}',
        "the whole number '18446744073709551616' does not fit 64 bits; give it as text",
    ),
    (
        "65 bits below 0",
        b'{"a": -9223372036854775809}',
        "the whole number '-9223372036854775809' does not fit 64 bits; give it as text",
    ),
    ("duplicate key", b'{"a": 1, "b": 2, "a": 1}', "the key 'a' appears twice in one object"),
    ("duplicate key, escaped", b'{"a": {"b": 1, "\\u0062": 2}}', "the key 'b' appears twice in one object"),
    ("empty line", b"", "the line is empty"),
    ("empty line, CRLF", b"\r", "the line is empty"),
    ("blank line", b" \t ", "the line is empty"),
    ("an array", b"[1]", "holds an array; must be a JSON object"),
    ("a string", b'"prompt"', "holds a string; must be a JSON object"),
    ("a number", b"1.5", "holds a number; must be a JSON object"),
    ("a boolean", b"true", "holds true or false; must be a JSON object"),
    ("null", b"null", "holds null; must be a JSON object"),
    ("torn", b'{"a": "x', "not valid JSON: Unterminated string starting at character 6"),
    ("two objects", b"{} {}", "not valid JSON: Extra data at character 3"),
    ("bad escape", b'{"a": "\\x"}', "not valid JSON: Invalid \\escape at character 7"),
    (
        "no quotes",
        b"{a: 1}",
        "not valid JSON: Expecting property name enclosed in double quotes at character 1",
    ),
    ("raw control character", b'{"a": "x\x01y"}', "not valid JSON: Invalid control character at character 8"),
    ("byte order mark within", b"\xef\xbb\xbf{}", "not valid JSON: Expecting value at character 0"),
    (
        "nested too deeply",
        b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}",
        "JSON is nested too deeply; at most 100 levels are allowed",
    ),
    ("too long", b'{"a": "' + b"x" * LIMIT + b'"}', "the line is longer than 1000 bytes"),
]

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)


def records(folder: Path, content: bytes, limit: int = LIMIT) -> list[Record]:
    path = folder / "rows.jsonl"
    path.write_bytes(content)
    return list(Dataset(path, max_line_bytes=limit).records())


@pytest.mark.parametrize(("line", "reason"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_bad_line_is_told_by_its_number_and_harms_no_other(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    before, bad, after = records(tmp_path, GOOD + b"\n" + line + b"\n" + GOOD + b"\n")
    assert before == Record("rows.jsonl", 1, json.loads(GOOD))
    assert bad == Record("rows.jsonl", 2, None, reason)
    assert bad.source == "rows.jsonl:2"
    assert after == Record("rows.jsonl", 3, json.loads(GOOD))


def test_all_bad_lines_at_once(tmp_path: Path) -> None:
    content = b"".join(line + b"\n" + GOOD + b"\n" for _, line, _ in BAD)
    found = records(tmp_path, content)
    assert [(record.line, record.fault) for record in found if record.fault] == [
        (2 * i + 1, reason) for i, (_, _, reason) in enumerate(BAD)
    ]
    assert [record.columns for record in found if not record.fault] == [json.loads(GOOD)] * len(BAD)


def test_line_ends_and_the_end_of_the_file(tmp_path: Path) -> None:
    for content in (b"%s\n%s", b"%s\n%s\n", b"%s\r\n%s\r\n", b"\xef\xbb\xbf%s\n%s"):
        found = records(tmp_path, content.replace(b"%s", GOOD))
        assert [(record.line, record.columns) for record in found] == [(n, json.loads(GOOD)) for n in (1, 2)]
    assert records(tmp_path, b"") == []


def test_an_empty_line_at_the_end_is_a_bad_line_like_any_other(tmp_path: Path) -> None:
    assert [record.fault for record in records(tmp_path, GOOD + b"\n\n")] == [None, "the line is empty"]


def test_only_newline_bytes_split(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d"
    (record,) = records(tmp_path, json.dumps({"a": text}, ensure_ascii=False).encode())
    assert record.columns == {"a": text}


def test_surrogate_pairs_and_escaped_backslashes_are_no_lone_surrogates(tmp_path: Path) -> None:
    (record,) = records(tmp_path, rb'{"a": "\ud83d\ude00", "b": "\\ud800"}')
    assert record.columns == {"a": "\U0001f600", "b": "\\ud800"}


def test_extreme_numbers_are_kept(tmp_path: Path) -> None:
    row = {"a": 2**64 - 1, "b": -(2**63), "c": 1.7976931348623157e308, "d": 0.1, "e": -0.0}
    (record,) = records(tmp_path, json.dumps(row).encode())
    assert repr(record.columns) == repr(row)


def test_nesting_up_to_the_limit_and_many_brackets_beside_each_other(tmp_path: Path) -> None:
    deep = b'{"a": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b', "b": [[]]}'
    wide = json.dumps({"a": [[i] for i in range(200)]}).encode()
    very_deep = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    found = records(tmp_path, b"\n".join([deep, wide, very_deep]), limit=10**6)
    assert [record.fault for record in found] == [
        None,
        None,
        "JSON is nested too deeply; at most 100 levels are allowed",
    ]


def test_lines_up_to_the_limit(tmp_path: Path) -> None:
    line = b'{"a": "' + b"x" * (LIMIT - 9) + b'"}'
    assert len(line) == LIMIT
    faults = [record.fault for record in records(tmp_path, line + b"\r\n" + line + b" \n" + line)]
    assert faults == [None, "the line is longer than 1000 bytes", None]


def test_a_line_of_50_megabytes_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        file.write(GOOD + b'\n{"a": "')
        for _ in range(50):
            file.write(b"x" * 10**6)
        file.write(b'"}\n' + GOOD)
    tracemalloc.start()
    try:
        found = [(record.line, record.fault) for record in Dataset(path, max_line_bytes=10**6).records()]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [(1, None), (2, "the line is longer than 1000000 bytes"), (3, None)]
    assert peak < 8 * 10**6


@given(st.dictionaries(st.text(), json_values), st.booleans())
def test_any_object_is_read_back(row: dict[str, Any], ascii_only: bool) -> None:
    assert repr(parse_row(json.dumps(row, ensure_ascii=ascii_only))) == repr(row)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_row_or_a_fault_for_each_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.mkdir(exist_ok=True)
    found = records(path, GOOD + b"\n" + content)[1:]
    lines = content.split(b"\n")
    assert [record.line for record in found] == list(range(2, len(lines) + (2 if lines[-1] else 1)))
    assert all((record.columns is None) != (record.fault is None) for record in found)
