"""JSON lines and arrays: each row is good or bad alone, told by its number, wherever the bytes are cut."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.dataset import data_files, text_formats
from mindbatch.dataset.dataset import Dataset
from mindbatch.dataset.records import Record
from mindbatch.io.errors import ConfigError
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


def records(folder: Path, content: bytes | str, limit: int = LIMIT, name: str = "rows.jsonl") -> list[Record]:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
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


def test_line_ends_and_the_end_of_the_file(tmp_path: Path) -> None:
    for content in (b"%s\n%s", b"%s\n%s\n", b"%s\r\n%s\r\n", b"\xef\xbb\xbf%s\n%s"):
        found = records(tmp_path, content.replace(b"%s", GOOD))
        assert [(record.line, record.columns) for record in found] == [(n, json.loads(GOOD)) for n in (1, 2)]
    assert records(tmp_path, b"") == []
    empty = records(tmp_path, GOOD + b"\n\n")
    assert [record.error for record in empty] == [None, "the line is empty"], "at the end, too"


def test_only_newline_bytes_split(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d"
    (record,) = records(tmp_path, json.dumps({"a": text}, ensure_ascii=False).encode())
    assert record.columns == {"a": text}


def test_surrogate_pairs_and_escaped_backslashes_are_no_lone_surrogates(tmp_path: Path) -> None:
    (record,) = records(tmp_path, rb'{"a": "\ud83d\ude00", "b": "\\ud800"}')
    assert record.columns == {"a": "\U0001f600", "b": "\\ud800"}


def test_nesting_up_to_the_limit_and_many_brackets_beside_each_other(tmp_path: Path) -> None:
    deep = b'{"a": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b', "b": [[]]}'
    wide = json.dumps({"a": [[i] for i in range(200)]}).encode()
    very_deep = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    found = records(tmp_path, b"\n".join([deep, wide, very_deep]), limit=10**6)
    assert [record.error for record in found] == [
        None,
        None,
        "JSON is nested too deeply; at most 100 levels are allowed",
    ]


def test_lines_up_to_the_limit(tmp_path: Path) -> None:
    line = b'{"a": "' + b"x" * (LIMIT - 9) + b'"}'
    assert len(line) == LIMIT
    faults = [record.error for record in records(tmp_path, line + b"\r\n" + line + b" \n" + line)]
    assert faults == [None, "the line is longer than 1000 bytes", None]


@given(st.dictionaries(st.text(), json_values), st.booleans())
def test_any_object_is_read_back(row: dict[str, Any], ascii_only: bool) -> None:
    assert repr(parse_row(json.dumps(row, ensure_ascii=ascii_only))) == repr(row)


UNFINISHED = "the file ends before the array does; this element is incomplete"
MISSING = "an element is missing beside a comma"
STRAY = "a } stands where the array should go on or end; nothing after it was read"
TRAILING = "there is more after the end of the array"
NO_ARRAY = "holds no JSON array of objects; for an object a line, name it .jsonl or give data.format=jsonl"


def outcomes(folder: Path, content: bytes | str) -> list[Any]:
    found = records(folder, content, name="rows.json")
    assert [record.line for record in found] == list(range(1, len(found) + 1))
    return [record.columns if record.error is None else record.error for record in found]


@pytest.fixture(params=[1, 2, 3, 7, 1 << 17])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The file comes in pieces of so many bytes."""
    monkeypatch.setattr(text_formats, "BUFFER_BYTES", request.param)
    return int(request.param)


TRICKY = [
    {"a": 'quotes " and \\ backslashes \\" and ] } , [ {', "b": ["]", "\\", '\\"', "", "\\\\"]},
    {"}": {"]": [[], {}, [{"a": [1, 2]}]]}, "é": "\u2028\U0001f600"},
    {},
    {"n": [1, -2.5, 1e10, True, None]},
]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.usefixtures("chunk_bytes")
def test_elements_are_found_wherever_the_file_is_cut(tmp_path: Path, indent: int | None) -> None:
    assert outcomes(tmp_path, json.dumps(TRICKY, indent=indent)) == TRICKY
    assert outcomes(tmp_path, json.dumps(TRICKY, ensure_ascii=False, indent=indent)) == TRICKY


@pytest.mark.usefixtures("chunk_bytes")
def test_faults_of_elements(tmp_path: Path) -> None:
    content = b'[{"a": NaN}, {"a": 1, "a": 1}, {"a": "\xff"}, {"a" 1}, 3, {"a": 1} {"b": 2}, {"a": 1}]'
    assert outcomes(tmp_path, content) == [
        "NaN is no number of JSON",
        "the key 'a' appears twice in one object",
        "not valid UTF-8: byte 0xff at position 7",
        "not valid JSON: Expecting ':' delimiter at character 5",
        "holds a number; must be a JSON object",
        "not valid JSON: Extra data at character 9",
        {"a": 1},
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[]", []),
        (" \n[ \n] \n", []),
        ("\ufeff[{}]", [{}]),
        ("[{}]\n", [{}]),
        ("[{},]", [{}, MISSING]),
        ("[,]", [MISSING, MISSING]),
        ("[{},,{}]", [{}, MISSING, {}]),
        ("[{}", [UNFINISHED]),
        ("[{},", [{}, UNFINISHED]),
        ("[", [UNFINISHED]),
        ('[{"a": 1}, {"a": "x', [{"a": 1}, UNFINISHED]),
        ("[{}] []", [{}, TRAILING]),
        ("[{}]]", [{}, TRAILING]),
        ("[{}}, {}]", [{}, STRAY]),
        ("[}", [STRAY]),
    ],
)
@pytest.mark.usefixtures("chunk_bytes")
def test_edges_of_the_array(tmp_path: Path, content: str, expected: list[Any]) -> None:
    assert outcomes(tmp_path, content) == expected


@pytest.mark.parametrize("content", ["", "  ", '{"a": 1}', '{"a": 1}\n{"a": 2}\n', "prompt", "\ufeff"])
def test_a_file_that_holds_no_array_is_refused_as_a_whole(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigError) as caught:
        records(tmp_path, content, name="rows.json")
    assert caught.value.lines == (f"data.path: {tmp_path}/rows.json: {NO_ARRAY}",)


@pytest.mark.usefixtures("chunk_bytes")
def test_long_elements_around_the_limit(tmp_path: Path) -> None:
    elements = ['{"a": "' + "x" * (length - 9) + '"}' for length in (20, 21, 60, 20)]
    found = records(tmp_path, "[" + ",".join(elements) + "]", limit=20, name="rows.json")
    too_long = "the element is longer than 20 bytes"
    assert [record.error for record in found] == [None, too_long, too_long, None]


def test_a_long_string_of_backslashes(tmp_path: Path) -> None:
    text = "\\" * 400_000
    assert outcomes(tmp_path, json.dumps([{"a": text}]))[0] == "the element is longer than 1000 bytes"
    (record,) = records(tmp_path, json.dumps([{"a": text}]), limit=10**6, name="rows.json")
    assert record.columns == {"a": text}


@given(
    content=st.text('[]{},:"\\a1 \n', max_size=30), size=st.sampled_from([1, 2, 5, data_files.BUFFER_BYTES])
)
def test_any_content_reads_the_same_in_any_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, size: int
) -> None:
    whole = outcomes(tmp_path, "[" + content)
    with monkeypatch.context() as patched:
        patched.setattr(text_formats, "BUFFER_BYTES", size)
        assert outcomes(tmp_path, "[" + content) == whole
    try:
        parsed = json.loads("[" + content)
    except ValueError:
        assert any(isinstance(outcome, str) for outcome in whole)
    else:
        assert len(whole) == len(parsed)
