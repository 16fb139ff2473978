"""Generate, called with batches as Ray Data makes them, over a model that is none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindbatch import ConfigError
from mindbatch.llm import LLM
from mindbatch.ray import Generate
from mindbatch.run.batch_config import BatchConfig
from shadow_llm import load_tokenizer, make_llm
from stub_job import job_config, lines_of, make_job, shared_tokenizer

MODEL = "shipped:examples/tiny_gpt2"
DATA = {"key_column": "id", "prompt_column": "question", "decoding_column": "own"}
DECODING = {"max_new_tokens": 5, "do_sample": True, "seed": 3}
OUTPUT = {"columns": ["label"], "token_ids": True}
ROWS: list[dict[str, Any]] = [
    {"id": 7, "question": "hello", "own": {"top_k": 3}, "label": "a"},
    {"id": 8, "question": "world", "own": {"temperature": 0.5, "logprobs": 2}, "label": None},
    {"id": 9, "question": None, "own": None, "label": "c"},
    {"id": 10, "question": "hello", "own": None, "label": "d"},
    {"id": 11, "question": "w" * 300, "own": None, "label": "e"},
]
Rows = list[dict[str, Any]]
Made = Callable[..., Generate]


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Makes a Generate over the shadow model."""

    def loaded(config: BatchConfig) -> LLM:
        assert (config.model.checkpoint_name_or_path or "").endswith("examples/tiny_gpt2")
        return make_llm(shared_tokenizer(), batch_size=config.model.batch_size)

    monkeypatch.setattr("mindbatch.ray.generate._loaded", loaded)

    def make(data: dict[str, Any] = DATA, **given: Any) -> Generate:
        return Generate(MODEL, **{"data": data, "decoding": DECODING} | given)

    return make


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `mindbatch batch` over the rows."""
    folder = tmp_path_factory.mktemp("run")
    data = folder / "rows.jsonl"
    data.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in ROWS))
    output = {"format": "parquet", **OUTPUT}
    make_job(job_config(data, folder / "run", decoding=DECODING, output=output, **DATA)).run()
    return folder / "run"


def as_arrow(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(rows)


def as_pandas_of_arrow(rows: Rows) -> pd.DataFrame:
    """Columns that keep Arrow's types, as Ray gives them."""
    return as_arrow(rows).to_pandas(types_mapper=pd.ArrowDtype)


def as_pandas(rows: Rows) -> pd.DataFrame:
    return as_arrow(rows).to_pandas()


def as_numpy(rows: Rows) -> dict[str, Any]:
    """Within mappings, whole numbers of which others are null become fractions, as in Ray."""
    batch = {name: column.to_numpy() for name, column in as_pandas(rows).items()}
    for own in batch["own"]:
        own and own.update({name: float(value) for name, value in own.items() if value is not None})
    return batch


@pytest.mark.parametrize("batch_of", [as_arrow, as_pandas_of_arrow, as_pandas, as_numpy])
def test_rows_have_the_results_and_errors_of_a_batch_run(
    generate: Made, run_folder: Path, batch_of: Callable[[Rows], Any]
) -> None:
    table = generate(output=OUTPUT, batch_size=2)(batch_of(ROWS))
    done = [row for row in table.to_pylist() if row["error"] is None]
    results = pq.read_table(run_folder / "results.parquet")
    assert [{name: row[name] for name in row if name != "error"} for row in done] == results.to_pylist()
    assert [*table.column_names] == [*results.column_names, "error"]
    failed = [(row["key"], row["error"]) for row in table.to_pylist() if row["error"] is not None]
    errors = lines_of(run_folder / "errors.jsonl")
    assert failed == [(error["key"], error["reason"]) for error in errors]
    assert table["key"].to_pylist() == ["7", "8", "9", "10", "11"]
    assert table["label"].to_pylist() == ["a", None, "c", "d", "e"]


def test_a_row_has_the_same_result_in_any_batch_even_beside_one_of_its_key(generate: Made) -> None:
    whole = generate()(as_arrow(ROWS)).to_pylist()
    alone = generate()(as_arrow(ROWS[3:4])).to_pylist()
    twice = generate()(as_arrow([*ROWS[3:], ROWS[3]])).to_pylist()
    assert alone == whole[3:4]
    assert twice == [*whole[3:], whole[3]]


def test_what_an_empty_batch_gives_has_the_same_columns(generate: Made) -> None:
    made = generate(output=OUTPUT)
    empty = made(as_arrow(ROWS).slice(0, 0))
    assert (empty.num_rows, empty.schema) == (0, made(as_arrow(ROWS)).schema)


def test_chats_and_token_ids(generate: Made) -> None:
    chat = [{"role": "user", "content": "hello"}]
    llm = make_llm(shared_tokenizer())
    ids = llm.required_tokenizer.encode("hi there")
    expected = [llm.generate([prompt], max_new_tokens=5)[0].outputs[0].text for prompt in (chat, ids)]
    made = generate({"key_column": "id", "prompt_column": "p"}, decoding={"max_new_tokens": 5})

    def texts(prompts: Any) -> list[str]:
        results = made({"id": np.arange(len(prompts)), "p": prompts}).to_pylist()
        return [row["generations"][0]["text"] for row in results]

    both = np.empty(2, dtype=object)  # of no one type
    both[:] = [np.array(chat, dtype=object), np.array(ids)]
    assert texts(both) == expected
    assert texts(np.array([ids, ids])) == [expected[1]] * 2


def test_columns_of_any_type_stand_beside_the_results(generate: Made) -> None:
    mixed = np.empty(2, dtype=object)
    mixed[:] = ["a", [1, 2]]
    batch = {
        "id": np.arange(2),
        "question": np.array(["x", "y"], dtype=object),
        "raw": np.array([b"\xff", b"\x00"], dtype=object),
        "score": np.array([0.5, np.nan]),
        "mixed": mixed,
        "grid": np.arange(4).reshape(2, 2),
    }
    data = {"key_column": "id", "prompt_column": "question"}
    table = generate(data, output={"columns": ["raw", "score", "mixed", "grid"]})(batch)
    assert table.column_names[:5] == ["key", "raw", "score", "mixed", "grid"]
    assert table["raw"].to_pylist() == [b"\xff", b"\x00"]
    assert table["score"].to_pylist() == [0.5, None]
    assert table["mixed"].to_pylist() == ['"a"', "[1,2]"]
    assert table["grid"].to_pylist() == [[0, 1], [2, 3]]
    assert table["error"].to_pylist() == [None, None]


def test_columns_that_are_not_there_are_refused(generate: Made) -> None:
    with pytest.raises(
        ConfigError, match="output.columns: no column lable; the row has .*did you mean label"
    ):
        generate(output={"columns": ["lable"]})(as_arrow(ROWS))
    with pytest.raises(ConfigError, match="data.decoding_column: no column owned; .*did you mean own"):
        generate({**DATA, "decoding_column": "owned"})(as_arrow(ROWS))
    results = generate({**DATA, "prompt_column": "qestion"})(as_arrow(ROWS[:2])).to_pylist()
    assert [row["error"].partition(";")[0] for row in results] == [
        "data.prompt_column: no column qestion"
    ] * 2


def test_what_is_no_batch_is_refused(generate: Made) -> None:
    with pytest.raises(ConfigError, match="found a list; must be numpy, pandas or pyarrow"):
        generate()([1, 2])
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"])
    with pytest.raises(ConfigError, match="more than one column"):
        generate()(twice)


def test_every_fault_is_said_before_a_model_is_loaded() -> None:
    with pytest.raises(ConfigError) as raised:
        Generate(
            "nowhere/at/all",
            data={"limit": 3, "prompt_colum": "q", "chat": 1},
            decoding={"tempratur": 2.0, "num_beams": "x"},
            output={"dir": "x", "format": "csv"},
            batch_size=0,
        )
    assert [fault.partition(";")[0].partition(" (")[0] for fault in raised.value.lines] == [
        "data.limit: has no effect with Ray Data: the dataset sets it",
        "data.prompt_colum: unknown key",
        "data.chat=1: must be true or false",
        "decoding.tempratur: unknown key",
        "decoding.num_beams=x: must be a whole number",
        "output.dir: has no effect with Ray Data: no file is written",
        "output.format: has no effect with Ray Data: no file is written",
        "model.checkpoint_name_or_path=nowhere/at/all: no such folder",
        "model.batch_size=0: must be a whole number, at least 1",
    ]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({}, "data.key_column: must be given"),
        ({"data": 3}, "data=3: must be a mapping of keys"),
        ({"data": DATA, "decoding": {"top_p": 9.0}}, "decoding.top_p=9.0: must be above 0"),
        ({"data": {**DATA, "template": "{{ q }}"}}, "data.prompt_column, data.template: a prompt comes from"),
        ({"data": {**DATA, "template_file": "none.txt"}}, "data.template_file=none.txt: no such file"),
        ({"data": DATA, "output": {"columns": ["error"]}}, "output.columns: error: results already have"),
        ({"data": DATA, "output": {"columns": ["prompt"]}}, "output.columns: prompt: results have a field"),
    ],
)
def test_faults_of_values_that_have_the_right_types(given: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Generate(MODEL, **given)
    assert fault in str(raised.value)


def test_an_option_that_there_is_not() -> None:
    with pytest.raises(TypeError, match="'bath_size'; did you mean batch_size"):
        Generate(MODEL, data=DATA, bath_size=3)


def test_no_seed_is_drawn() -> None:
    with pytest.raises(
        ConfigError, match="decoding.seed=random: each actor would draw its own; use a number"
    ):
        Generate(MODEL, data=DATA, decoding={"do_sample": True, "seed": "random"})


def test_chats_are_told_the_date_that_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dated = load_tokenizer(tmp_path, chat_template="{{ strftime_now('%Y') }} {{ messages[0].content }}")
    monkeypatch.setattr("mindbatch.ray.generate._loaded", lambda config: make_llm(dated))
    data = {"key_column": "id", "prompt_column": "question", "chat": True}
    batch = {"id": np.array([1]), "question": np.array(["why"])}
    found = [Generate(MODEL, data=data | {"date": f"{year}-07-31"})(batch) for year in (2025, 2026, 2025)]
    assert found[0].equals(found[2])
    assert not found[0].equals(found[1])
