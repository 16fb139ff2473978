"""CSV and Parquet files, as other programs read them."""

import csv
import io
import json
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import pytest

from mindbatch.run import parquet_results
from mindbatch.run.parquet_results import parquet_table
from mindbatch.run.result_rows import FinishedRow, OutputOptions, csv_columns, csv_table
from output_rows import AWKWARD_TEXT, finished, generation, written

MESSAGES = [{"role": "user", "content": "今天"}]
LIKELY = [{"17": -0.5, "3": -1.5}, {"8": -0.25}]


def csv_rows(*rows: FinishedRow, **options: Any) -> list[dict[str, str]]:
    data = written(partial(csv_table, options=OutputOptions(**options)), *rows)
    return list(csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True))


def parquet_file(*rows: FinishedRow, **options: Any) -> pq.ParquetFile:
    return pq.ParquetFile(
        io.BytesIO(written(partial(parquet_table, options=OutputOptions(**options)), *rows))
    )


def parquet_rows(*rows: FinishedRow, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet_file(*rows, **options).read().to_pylist()
    return found


def test_csv_has_a_line_for_each_generation() -> None:
    found = csv_rows(finished("a", generation(0, "x"), generation(1, "yz", (1, 2, 3))), finished("b"))
    assert [(row["key"], row["index"], row["text"], row["tokens"]) for row in found] == [
        ("a", "0", "x", "2"),
        ("a", "1", "yz", "3"),
        ("b", "0", "out", "2"),
    ]
    assert found[0] == {
        "key": "a",
        "prompt": "in",
        "index": "0",
        "text": "x",
        "finish_reason": "stop",
        "tokens": "2",
        "cumulative_logprob": repr(-0.1 - 0.2),
        "score": "",
        "rank": "",
        "drafted_tokens": "",
        "accepted_tokens": "",
        "prompt_tokens": "3",
        "logprobs": "",
        "prompt_logprobs": "",
    }


def test_csv_cells_hold_any_text_as_it_is() -> None:
    (row,) = csv_rows(finished("=1", generation(text=AWKWARD_TEXT), content={"text": "a\rb"}))
    assert (row["key"], row["text"], row["prompt"]) == ("=1", AWKWARD_TEXT, "a\rb")


def test_csv_lists_are_json() -> None:
    row = finished("a", generation(logprobs=LIKELY), content={"messages": MESSAGES}, prompt_logprobs=[None])
    (found,) = csv_rows(row, token_ids=True)
    assert json.loads(found["prompt"]) == MESSAGES
    assert json.loads(found["token_ids"]) == [7, 8]
    assert json.loads(found["logprobs"]) == LIKELY
    assert json.loads(found["prompt_logprobs"]) == [None]


def test_csv_shows_what_a_strategy_adds() -> None:
    (ranked, drafted) = csv_rows(
        finished("a", generation(score=-0.5, rank=1), generation(1, drafted_tokens=9, accepted_tokens=6))
    )
    assert (ranked["score"], ranked["rank"], ranked["drafted_tokens"]) == ("-0.5", "1", "")
    assert (drafted["rank"], drafted["drafted_tokens"], drafted["accepted_tokens"]) == ("", "9", "6")


def test_an_empty_csv_has_its_header() -> None:
    assert written(partial(csv_table, options=OutputOptions(prompt=False))) == (
        b"key,index,text,finish_reason,tokens,cumulative_logprob,score,rank,drafted_tokens,accepted_tokens,"
        b"prompt_tokens,logprobs,prompt_logprobs\r\n"
    )
    assert csv_columns(OutputOptions(token_ids=True))[:5] == ["key", "prompt", "index", "text", "token_ids"]


def test_csv_as_pandas_reads_it() -> None:
    pandas = pytest.importorskip("pandas")
    data = written(
        partial(csv_table, options=OutputOptions()),
        finished("007", generation(text=AWKWARD_TEXT)),
        finished("NA", generation(text="")),
    )
    frame = pandas.read_csv(io.BytesIO(data), dtype={"key": str, "text": str}, keep_default_na=False)
    assert frame["key"].tolist() == ["007", "NA"]
    assert frame["text"].tolist() == [AWKWARD_TEXT, ""]
    assert frame["cumulative_logprob"].tolist() == pytest.approx([-0.3, -0.3])
    assert frame["tokens"].tolist() == [2, 2]


def test_parquet_has_a_row_for_each_row() -> None:
    drafted = generation(0, AWKWARD_TEXT, logprobs=LIKELY, drafted_tokens=9, accepted_tokens=6)
    ranked = generation(1, score=-1.5, rank=2)
    row = finished("a", drafted, ranked, prompt_logprobs=[None, {"2": -3.0}])
    first, second = parquet_rows(row, finished("b", content={"token_ids": [5]}), token_ids=True)
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


def test_parquet_columns_follow_the_options() -> None:
    (row,) = parquet_rows(finished(), prompt=False)
    assert "prompt" not in row
    assert "token_ids" not in row["generations"][0]


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


def test_parquet_without_rows_has_its_columns() -> None:
    table = parquet_file().read()
    assert table.num_rows == 0
    assert table.column_names[:2] == ["key", "prompt"]


def test_parquet_as_pandas_reads_it() -> None:
    pandas = pytest.importorskip("pandas")
    data = written(partial(parquet_table, options=OutputOptions()), finished("007"), finished("b"))
    frame = pandas.read_parquet(io.BytesIO(data))
    assert frame["key"].tolist() == ["007", "b"]
    assert frame["generated_tokens"].dtype == "int64"
    assert [generations[0]["text"] for generations in frame["generations"]] == ["out", "out"]


@pytest.mark.parametrize("make", [csv_table, parquet_table])
def test_the_same_rows_make_the_same_bytes(make: Any) -> None:
    rows = [finished(str(i), generation(text=AWKWARD_TEXT, logprobs=LIKELY)) for i in range(20)]
    first, second = (written(partial(make, options=OutputOptions()), *rows) for _ in range(2))
    assert first == second
