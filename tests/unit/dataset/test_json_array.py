"""A JSON array is read element by element: as strictly as JSON lines, wherever its bytes are cut."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.dataset import data_files, text_formats
from mindbatch.dataset.dataset import Dataset
from mindbatch.dataset.records import Record
from mindbatch.io.errors import ConfigError

UNFINISHED = "the file ends before the array does; this element is incomplete"
MISSING = "an element is missing beside a comma"
STRAY = "a } stands where the array should go on or end; nothing after it was read"
TRAILING = "there is more after the end of the array"
NO_ARRAY = "holds no JSON array of objects; for an object a line, name it .jsonl or give data.format=jsonl"


def records(folder: Path, content: bytes | str, limit: int = 1000) -> list[Record]:
    path = folder / "rows.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(Dataset(path, max_line_bytes=limit).records())


def outcomes(folder: Path, content: bytes | str) -> list[Any]:
    found = records(folder, content)
    assert [record.line for record in found] == list(range(1, len(found) + 1))
    return [record.columns if record.fault is None else record.fault for record in found]


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
        records(tmp_path, content)
    assert caught.value.faults == (f"data.path: {tmp_path}/rows.json: {NO_ARRAY}",)


@pytest.mark.usefixtures("chunk_bytes")
def test_long_elements_around_the_limit(tmp_path: Path) -> None:
    elements = ['{"a": "' + "x" * (length - 9) + '"}' for length in (20, 21, 60, 20)]
    found = records(tmp_path, "[" + ",".join(elements) + "]", limit=20)
    too_long = "the element is longer than 20 bytes"
    assert [record.fault for record in found] == [None, too_long, too_long, None]


def test_an_element_of_50_megabytes_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    with path.open("wb") as file:
        file.write(b'[{}, {"a": "')
        for _ in range(50):
            file.write(b"x" * 10**6)
        file.write(b'"}, {}]')
    tracemalloc.start()
    try:
        found = [record.fault for record in Dataset(path, max_line_bytes=10**6).records()]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [None, "the element is longer than 1000000 bytes", None]
    assert peak < 8 * 10**6


def test_a_long_string_of_backslashes(tmp_path: Path) -> None:
    text = "\\" * 400_000
    assert outcomes(tmp_path, json.dumps([{"a": text}]))[0] == "the element is longer than 1000 bytes"
    (record,) = records(tmp_path, json.dumps([{"a": text}]), limit=10**6)
    assert record.columns == {"a": text}


@given(
    rows=st.lists(
        st.dictionaries(st.text(max_size=3), st.text('\\"[]{},:a ', max_size=8), max_size=3), max_size=5
    ),
    size=st.integers(1, 9),
)
def test_an_array_reads_like_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, str]], size: int
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(text_formats, "BUFFER_BYTES", size)
        assert outcomes(tmp_path, json.dumps(rows)) == rows


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
