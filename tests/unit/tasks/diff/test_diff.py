"""Two runs row by row: what is equal, what has changed and where, and what only one of them has."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.ledger.entries import Entry
from mindbatch.tasks.diff import CONTEXT, DiffConfig, difference, run
from small_runs import failure, generation, make_run, result

COMPLETE = {"status": "complete"}


def diff(tmp_path: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, dict[str, Any]]:
    """The exit code and what the task prints as JSON."""
    config = DiffConfig(first=f"{tmp_path}/a", second=f"{tmp_path}/b", format="json", **options)
    code = run(config)
    return code, json.loads(capsys.readouterr().out)


def test_equal_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [result(str(number), f"text {number}") for number in range(30)]
    make_run(tmp_path / "a", *rows, failure("x"), manifest=COMPLETE)
    make_run(tmp_path / "b", *reversed(rows), failure("x"), manifest=COMPLETE)
    code, found = diff(tmp_path, capsys)
    assert (code, found["equal"], found["changed"], found["failed_in_both"]) == (0, 30, 0, 1)
    assert found["is_equal"] is True
    assert run(DiffConfig(first=f"{tmp_path}/a", second=f"{tmp_path}/b")) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0] == f"{tmp_path}/a and {tmp_path}/b: all rows are equal"
    assert captured.err == ""


def test_every_kind_of_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(
        tmp_path / "a",
        result("1", "same"),
        result("2", "abcde"),
        result("3", "x"),
        failure("4"),
        result("5", "only here"),
        result("7", "x"),
        manifest=COMPLETE,
        temperature=0.0,
    )
    make_run(
        tmp_path / "b",
        result("1", "same"),
        result("2", "abXde", row="asked otherwise"),
        failure("3"),
        result("4", "x"),
        result("6", "only there"),
        manifest=COMPLETE,
        errors=[{"key": "7", "stage": "read"}],
        temperature=0.7,
    )
    code, found = diff(tmp_path, capsys)
    assert code == 1
    assert found["settings"] == ["temperature 0.0 -> 0.7"]
    assert (found["equal"], found["changed"]) == (1, 1)
    (row,) = found["changed_rows"]
    assert (row["key"], row["same_row"]) == ("2", False)
    assert row["difference"] == {"generation": 0, "token": 2, "first": "abcde", "second": "abXde"}
    assert found["failed_in_first"] == {"count": 1, "keys": ["4"]}
    assert found["failed_in_second"] == {"count": 2, "keys": ["3", "7"]}
    assert found["only_in_first"] == {"count": 1, "keys": ["5"]}
    assert found["only_in_second"] == {"count": 1, "keys": ["6"]}


@pytest.mark.parametrize("runs", ["ab", "ba"])
@pytest.mark.parametrize(
    ("one", "other"),
    [([], [result("9", "x")]), ([], [failure("9")]), ([failure("9")], [result("9", "x")])],
)
def test_what_one_run_lacks_is_a_difference(
    runs: str, one: list[Entry], other: list[Entry], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / runs[0], result("1", "x"), *one)
    make_run(tmp_path / runs[1], result("1", "x"), *other)
    code, found = diff(tmp_path, capsys)
    assert (code, found["equal"], found["changed"]) == (1, 1, 0)


def test_rows_without_a_key_failed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines that are no rows have no key; they go by their place, which OpenAI's form has in its message."""
    broken = [{"key": None, "source": "rows.jsonl", "line": line, "stage": "read"} for line in (2, 5)]
    unread = {"custom_id": None, "error": {"code": "invalid_line", "message": "rows.jsonl:9: not valid JSON"}}
    make_run(tmp_path / "a", result("1", "x"), failure("8"), errors=[*broken, unread])
    make_run(
        tmp_path / "b", result("1", "x"), failure("8"), errors=[*broken, unread, broken[0] | {"line": 7}]
    )
    code, found = diff(tmp_path, capsys)
    assert (code, found["failed_in_both"]) == (1, 4)
    assert found["only_in_second"] == {"count": 1, "keys": ["rows.jsonl:7"]}


def test_a_limit_shows_the_first_rows_and_counts_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = [11, 2, 100, 1]
    extra = [result("q-1", "x"), result("q-0", "x")]
    make_run(tmp_path / "a", *(result(str(number), "a") for number in numbers), *extra)
    make_run(tmp_path / "b", *(result(str(number), "b") for number in numbers))
    assert diff(tmp_path, capsys, limit=1)[1]["only_in_first"] == {"count": 2, "keys": ["q-0"]}
    _, found = diff(tmp_path, capsys, limit=2)
    assert [row["key"] for row in found["changed_rows"]] == ["1", "2"]
    assert found["changed"] == 4
    assert found["only_in_first"] == {"count": 2, "keys": ["q-0", "q-1"]}
    _, found = diff(tmp_path, capsys)
    assert [row["key"] for row in found["changed_rows"]] == ["1", "2", "11", "100"]
    _, found = diff(tmp_path, capsys, limit=0)
    assert (found["changed"], found["changed_rows"]) == (4, [])


def test_the_page_escapes_what_would_act_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", result("k\x1b[2J", "x\n\x9b\u202eé"))
    make_run(tmp_path / "b", result("k\x1b[2J", "y"))
    assert run(DiffConfig(first=f"{tmp_path}/a", second=f"{tmp_path}/b")) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-3:] == [
        "k\\x1b[2J: differs from generation 0, token 0",
        f"  {tmp_path}/a: x\\n\\x9b\\u202eé",
        f"  {tmp_path}/b: y",
    ]
    assert captured.err == "".join(
        f"mindbatch: {tmp_path}/{name}: not complete (incomplete); compared as far as it has come\n"
        for name in "ab"
    )


def test_no_name_of_a_folder_forges_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(tmp_path / f"{name}\nall rows are equal\x1b[2J") for name in "ab"]
    make_run(Path(names[0]), result("1", "x"), result("2", "x"))
    make_run(Path(names[1]), result("1", "y"))
    assert run(DiffConfig(first=names[0], second=names[1])) == 1
    captured = capsys.readouterr()
    assert "all rows are equal\x1b[2J" not in captured.out + captured.err
    assert "\x1b" not in captured.out + captured.err
    lines = captured.out.splitlines()
    assert lines[0].count("\\nall rows are equal\\x1b[2J") == 2
    assert not [line for line in lines if line.startswith("all rows")]


def test_damage_is_told_and_the_rest_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "a", result("1", "x"), result("2", "x"), manifest=COMPLETE)
    make_run(tmp_path / "b", result("1", "x"), result("2", "x"), manifest=COMPLETE)
    before = folder.ledger.read_bytes()[:-3]
    folder.ledger.write_bytes(before)
    assert run(DiffConfig(first=f"{tmp_path}/a", second=f"{tmp_path}/b")) == 1
    captured = capsys.readouterr()
    assert "only in " in captured.out
    assert "torn" in captured.err
    assert folder.ledger.read_bytes() == before


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    with pytest.raises(ConfigError, match="no run here"):
        run(DiffConfig(first=f"{tmp_path}/a", second=str(tmp_path)))


SAME, LONG = "s" * 100, "t" * 100


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([generation("a"), generation("bc")], [generation("a"), generation("bd")], (1, 1, "bc", "bd")),
        (
            [generation(f"{SAME}a{LONG}")],
            [generation(f"{SAME}b{LONG}")],
            (0, 100, *(f"...{'s' * CONTEXT}{letter}{'t' * (CONTEXT - 1)}..." for letter in "ab")),
        ),
        (
            [generation("a")],
            [generation("a", finish_reason="length")],
            (0, None, "finish_reason stop", "finish_reason length"),
        ),
        (
            [generation("ab", token_ids=[1, 2])],
            [generation("ab", token_ids=[1, 7, 8])],
            (0, 1, "token ids 1 2", "token ids 1 7 8"),
        ),
        (
            [generation("a")],
            [generation("a"), generation("b")],
            (1, None, "no such generation", "one generation more"),
        ),
        ([generation("a")], [generation("a") | {"cumulative_logprob": -2.0}], None),
    ],
)
def test_the_first_difference_of_two_rows(
    one: list[Any], other: list[Any], expected: tuple[object, ...] | None
) -> None:
    found = difference({"generations": one}, {"generations": other})
    assert (found and (found.generation, found.token, found.first, found.second)) == expected


def test_what_they_were_computed_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slices = {name: {"kernels": "amx", "model_parallel": count} for name, count in (("a", 1), ("b", 2))}
    for name, kind in slices.items():
        make_run(tmp_path / name, result("1", "x"), manifest=COMPLETE, computed_with=kind)
    code, found = diff(tmp_path, capsys)
    assert (code, found["computed_with"]) == (0, ["model_parallel 1 -> 2"])
    assert run(DiffConfig(first=f"{tmp_path}/a", second=f"{tmp_path}/b")) == 0
    assert "\ncomputed with: model_parallel 1 -> 2\n" in capsys.readouterr().out
