"""The files of a run: formats as other programs read them, whole or not at all, errors beside the results."""

import csv
import io
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mindbatch.io.storage import Storage, StorageError
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.run import parquet_results
from mindbatch.run.parquet_results import parquet_table
from mindbatch.run.result_files import open_outputs
from mindbatch.run.result_rows import (
    FinishedRow,
    OutputOptions,
    csv_table,
    error_lines,
    result_lines,
)
from output_rows import AWKWARD_TEXT, failed, finished, generation, written

FORMATS = ["jsonl", "openai", "csv", "parquet"]
OPTIONS = OutputOptions(fingerprint="f", model="m")
MESSAGES = [{"role": "user", "content": "今天"}]
LIKELY = [{"17": -0.5, "3": -1.5}, {"8": -0.25}]


class FullDisk(Storage):
    def write(self, file: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("format", FORMATS)
def test_results_and_errors_in_the_order_given(format: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with open_outputs(format, folder, OPTIONS) as (add, add_error):
        add(finished("b"))
        add_error(failed("z"))
        add(finished("a"))
        assert not folder.results(format).exists()
    data = folder.results(format).read_bytes()
    if format == "parquet":
        assert pq.read_table(folder.results(format))["key"].to_pylist() == ["b", "a"]
    else:
        assert 0 < data.index(b"b") < data.rindex(b"a")
    (error,) = map(json.loads, folder.errors.read_text().splitlines())
    assert error["custom_id" if format == "openai" else "key"] == "z"
    assert sorted(os.listdir(tmp_path)) == sorted([folder.results(format).name, "errors.jsonl"])


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("storage", "error", "reason"),
    [
        (Storage(), KeyboardInterrupt, None),
        (FullDisk(), StorageError, "No space left on device"),
    ],
    ids=["interrupt", "full disk"],
)
def test_a_failure_leaves_the_older_files(
    storage: Storage, error: type[BaseException], reason: str | None, format: str, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    folder.results(format).write_text("old results")
    folder.errors.write_text("old errors")

    def fail() -> None:
        with open_outputs(format, folder, OPTIONS, storage) as (add, add_error):
            for i in range(2000):
                add(finished(str(i), generation(text=os.urandom(1000).hex())))
            raise KeyboardInterrupt

    with pytest.raises(error, match=reason):
        fail()
    assert folder.results(format).read_text() == "old results"
    assert folder.errors.read_text() == "old errors"
    assert len(os.listdir(tmp_path)) == 2


def test_rows_reach_the_disk_before_the_end_and_old_errors_go(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.errors.write_text("old errors")
    with open_outputs("jsonl", folder, OPTIONS) as (add, add_error):
        for i in range(30):
            add(finished(str(i), generation(text="x" * 100_000)))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) > 1_000_000
    assert folder.errors.read_bytes() == b""


def lines(*rows: FinishedRow, **options: Any) -> list[dict[str, Any]]:
    data = written(partial(result_lines, options=OutputOptions(**options)), *rows)
    parts = data.split(b"\n")
    assert parts.pop() == b""
    return [json.loads(part) for part in parts]


def test_a_line_has_the_fields_in_order_and_no_times() -> None:
    drafted = {"drafted_tokens": 8, "accepted_tokens": 5}
    two = finished("a", generation(0, "x"), generation(1, "yz", (1, 2, 3), finish_reason="length", **drafted))
    (line,) = lines(two)
    assert list(line) == ["key", "prompt", "generations", "prompt_tokens", "generated_tokens"]
    assert line == {
        "key": "a",
        "prompt": "in",
        "generations": [
            {"index": 0, "text": "x", "finish_reason": "stop", "tokens": 2, "cumulative_logprob": -0.1 - 0.2},
            {
                "index": 1,
                "text": "yz",
                "finish_reason": "length",
                "tokens": 3,
                "cumulative_logprob": -0.1 - 0.2,
                "drafted_tokens": 8,
                "accepted_tokens": 5,
            },
        ],
        "prompt_tokens": 3,
        "generated_tokens": 5,
    }


def test_token_ids_if_wanted_and_the_prompt_unless_not() -> None:
    (line,) = lines(finished("k", generation(score=-1.25, rank=1)), prompt=False, token_ids=True)
    assert "prompt" not in line
    (ranked,) = line["generations"]
    assert (ranked["token_ids"], ranked["score"], ranked["rank"]) == ([7, 8], -1.25, 1)


def test_the_prompt_is_as_it_was_given() -> None:
    found = lines(finished(content={"messages": MESSAGES}), finished(content={"token_ids": [5, 6]}))
    assert [line["prompt"] for line in found] == [MESSAGES, [5, 6]]


def test_log_probabilities_are_the_same_fresh_and_read_back_from_json() -> None:
    fresh = [{17: -0.5, 3: -1.5}, {8: -0.25}]
    (first,), (second,) = (
        lines(finished("k", generation(logprobs=likely), prompt_logprobs=[None, {2: -3.0}]))
        for likely in (fresh, LIKELY)
    )
    assert first == second
    assert first["generations"][0]["logprobs"] == LIKELY
    assert list(first["generations"][0]["logprobs"][0]) == ["17", "3"]
    assert first["prompt_logprobs"] == [None, {"2": -3.0}]


def test_any_text_stays_on_its_line() -> None:
    first, second = lines(finished("\u2028\n", generation(text=AWKWARD_TEXT)), finished("b"))
    assert (first["key"], second["key"]) == ("\u2028\n", "b")
    assert first["generations"][0]["text"] == AWKWARD_TEXT


def test_an_error_line_says_where_and_why() -> None:
    data = written(error_lines, failed(), failed(None, "read", "not JSON"))
    assert [json.loads(line) for line in data.splitlines()] == [
        {"key": "bad", "source": "in.jsonl", "line": 4, "stage": "row", "reason": "no column prompt"},
        {"key": None, "source": "in.jsonl", "line": 4, "stage": "read", "reason": "not JSON"},
    ]


def csv_rows(*rows: FinishedRow, **options: Any) -> list[dict[str, str]]:
    data = written(partial(csv_table, options=OutputOptions(**options)), *rows)
    return list(csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True))


def parquet_file(*rows: FinishedRow, **options: Any) -> pq.ParquetFile:
    data = written(partial(parquet_table, options=OutputOptions(**options)), *rows)
    return pq.ParquetFile(io.BytesIO(data))


def test_csv_has_a_line_for_each_generation() -> None:
    drafted = generation(1, "yz", (1, 2, 3), drafted_tokens=9, accepted_tokens=6)
    found = csv_rows(finished("a", generation(0, "x", score=-0.5, rank=1), drafted), finished("b"))
    assert [
        (row["key"], row["index"], row["text"], row["tokens"], row["drafted_tokens"]) for row in found
    ] == [
        ("a", "0", "x", "2", ""),
        ("a", "1", "yz", "3", "9"),
        ("b", "0", "out", "2", ""),
    ]
    assert found[0] == {
        "key": "a",
        "prompt": "in",
        "index": "0",
        "text": "x",
        "finish_reason": "stop",
        "tokens": "2",
        "cumulative_logprob": repr(-0.1 - 0.2),
        "score": "-0.5",
        "rank": "1",
        "drafted_tokens": "",
        "accepted_tokens": "",
        "prompt_tokens": "3",
        "logprobs": "",
        "prompt_logprobs": "",
    }
    assert (found[1]["score"], found[1]["rank"], found[1]["accepted_tokens"]) == ("", "", "6")


def test_csv_lists_are_json() -> None:
    row = finished("a", generation(logprobs=LIKELY), content={"messages": MESSAGES}, prompt_logprobs=[None])
    (cells,) = csv_rows(row, token_ids=True)
    lists = [json.loads(cells[name]) for name in ("prompt", "token_ids", "logprobs", "prompt_logprobs")]
    assert lists == [MESSAGES, [7, 8], LIKELY, [None]]


def test_parquet_has_a_row_for_each_row() -> None:
    drafted = generation(0, AWKWARD_TEXT, logprobs=LIKELY, drafted_tokens=9, accepted_tokens=6)
    ranked = generation(1, score=-1.5, rank=2)
    row = finished("a", drafted, ranked, prompt_logprobs=[None, {"2": -3.0}])
    file = parquet_file(row, finished("b", content={"token_ids": [5]}), token_ids=True)
    first, second = file.read().to_pylist()
    assert first == {
        "key": "a",
        "prompt": "in",
        "generations": [
            {
                "index": 0,
                "text": AWKWARD_TEXT,
                "token_ids": [7, 8],
                "finish_reason": "stop",
                "tokens": 2,
                "cumulative_logprob": -0.1 - 0.2,
                "score": None,
                "rank": None,
                "drafted_tokens": 9,
                "accepted_tokens": 6,
                "logprobs": [
                    [{"token_id": 17, "logprob": -0.5}, {"token_id": 3, "logprob": -1.5}],
                    [{"token_id": 8, "logprob": -0.25}],
                ],
            },
            {
                "index": 1,
                "text": "out",
                "token_ids": [7, 8],
                "finish_reason": "stop",
                "tokens": 2,
                "cumulative_logprob": -0.1 - 0.2,
                "score": -1.5,
                "rank": 2,
                "drafted_tokens": None,
                "accepted_tokens": None,
                "logprobs": None,
            },
        ],
        "prompt_tokens": 3,
        "generated_tokens": 4,
        "prompt_logprobs": [None, [{"token_id": 2, "logprob": -3.0}]],
    }
    assert (second["key"], second["prompt"], second["prompt_logprobs"]) == ("b", "[5]", None)


def test_parquet_is_written_in_groups_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_results, "ROWS_PER_GROUP", 4)
    file = parquet_file(*(finished(str(i)) for i in range(10)))
    groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert groups == [4, 4, 2]
    assert file.read()["key"].to_pylist() == [str(i) for i in range(10)]


@pytest.mark.parametrize(
    "long",
    [
        finished(content={"text": "x" * 60}),
        finished("k", generation(text="x" * 60)),
        finished("k", generation(token_ids=(1,) * 4)),
        finished("k", generation(token_ids=(1,), logprobs=[dict.fromkeys(range(4), -1.0)])),
        finished(prompt_logprobs=[None, dict.fromkeys(range(3), -1.0)]),
    ],
)
def test_long_rows_make_smaller_groups(long: FinishedRow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_results, "BYTES_PER_GROUP", 100)
    assert parquet_file(long, long, long, long).num_row_groups == 2


@pytest.mark.parametrize("make", [csv_table, parquet_table])
def test_the_same_rows_make_the_same_bytes(make: Any) -> None:
    rows = [finished(str(i), generation(text=AWKWARD_TEXT, logprobs=LIKELY)) for i in range(20)]
    first, second = (written(partial(make, options=OutputOptions()), *rows) for _ in range(2))
    assert first == second
