"""A row's own decoding parameters and adapter: the rules of the run's, the row's names in the error lines."""

from typing import Any

import orjson
import pytest

from mindbatch.config.lora_schema import LoraConfig
from mindbatch.dataset import column_rows
from mindbatch.dataset.column_rows import OverrideRules
from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.records import Record
from mindbatch.dataset.rows import DataRow, RowFailure, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.io.errors import ConfigError

SAMPLING = DecodingParams(do_sample=True, temperature=0.7, top_p=0.9, max_new_tokens=32)


def test_a_row_with_temperature_0_is_greedy_whatever_the_run_samples_among() -> None:
    row = made({"temperature": 0})
    assert isinstance(row, DataRow)
    params = row.params(SAMPLING)
    assert params.greedy
    assert (params.top_p, params.max_new_tokens) == (1.0, 32)
    own = made({"temperature": 0, "top_p": 0.5})
    assert isinstance(own, RowFailure)
    assert "top_p=0.5 has no effect with" in own.reason


def made(own: Any, base: DecodingParams = SAMPLING) -> DataRow | RowFailure:
    maker = RowMaker(DataConfig(decoding_column="own"), base, False)
    return maker.make(0, Record("rows.jsonl", 1, {"prompt": "a", "own": own}))


GOOD: dict[str, tuple[Any, dict[str, Any]]] = {
    "none": (None, {}),
    "empty": ({}, {}),
    "an empty cell": ("", {}),
    "one": ({"temperature": 1}, {"temperature": 1.0}),
    "several": ({"top_k": 5, "max_new_tokens": 3}, {"max_new_tokens": 3, "top_k": 5}),
    "nulls, as Parquet has them": ({"top_k": None, "seed": 3, "stop": None}, {"seed": 3}),
    "a cell of a CSV file": ('{"seed": 3}', {"seed": 3}),
    "lists": ({"stop": "x", "eos_token_id": 5}, {"eos_token_id": [5], "stop": ["x"]}),
    "lists within lists": (
        {"bad_words_ids": [[1], [2, 3]], "logit_bias": {"7": 1}, "sequence_bias": [[[1, 2], -3]]},
        {"bad_words_ids": [[1], [2, 3]], "logit_bias": [[7, 1.0]], "sequence_bias": [[[1, 2], -3.0]]},
    ),
    "a schema": (
        {"json_schema": {"type": "object", "properties": {"b": {}, "a": {}}}},
        {"json_schema": '{"type":"object","properties":{"b":{},"a":{}}}'},
    ),
}


@pytest.mark.parametrize(("own", "expected"), GOOD.values(), ids=GOOD)
def test_what_a_row_may_say(own: Any, expected: dict[str, Any]):
    item = made(own)
    assert isinstance(item, DataRow), item
    assert item.overrides == expected
    assert list(item.overrides) == sorted(item.overrides)
    kept = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "max_new_tokens": 32}
    assert item.params(SAMPLING) == DecodingParams(**kept | expected)


BAD: list[tuple[Any, list[str]]] = [
    ({"temprature": 1}, ["own.temprature: no decoding parameter; did you mean temperature?"]),
    (
        {"top_p": 1.5, "top_k": -1},
        ["own.top_k=-1: must be a whole number, at least 0", "own.top_p=1.5: must be above 0 and at most 1"],
    ),
    (
        {"tok_k": 1, "seed": "x"},
        [
            "own.tok_k: no decoding parameter; did you mean top_k?",
            "own.seed='x': must be a whole number, from 0 to 18446744073709551615, or random",
        ],
    ),
    ({"seed": "random", "top_p": 0.5}, ["own.seed=random: is for all rows of a run; a row gives a number"]),
    (
        {"num_return_sequences": 2, "temperature": 0},
        [
            "own.num_return_sequences=2 cannot go with own.temperature=0.0: greedy decoding has one output",
            "sample, or use 1",
        ],
    ),
    (
        {"min_new_tokens": 64},
        ["own.min_new_tokens=64 is above decoding.max_new_tokens=32", "must be at most that"],
    ),
    ({"max_new_tokens": True}, ["own.max_new_tokens=true: must be a whole number, at least 1, or null"]),
    ({"seed": 10**30}, ["the row's decoding parameters are no plain JSON (Integer exceeds 64-bit range)"]),
    ([1], ["own=[1]: must be a mapping of decoding parameters, like {temperature: 0.7}, or null"]),
    ("hot", ["own='hot': must be a mapping of decoding parameters, like {temperature: 0.7}, or null"]),
    (
        {"penalty_alpha": 0.6, "top_k": 4},
        [
            "own.penalty_alpha=0.6 cannot go with decoding.do_sample=true: "
            "contrastive search does not sample",
            "set decoding.do_sample=false",
        ],
    ),
    ({"prefix_allowed_tokens_fn": "print"}, ["own.prefix_allowed_tokens_fn: no decoding parameter"]),
    ({1: 2}, ["own: 1 is no decoding parameter"]),
]


@pytest.mark.parametrize(("own", "said"), BAD)
def test_what_a_row_may_not_say(own: Any, said: list[str]):
    item = made(own)
    assert isinstance(item, RowFailure)
    assert item.stage == "row"
    assert sorted(item.reason.split("; ")) == sorted("; ".join(said).split("; "))


def test_a_row_may_lack_the_column_but_not_every_row():
    maker = RowMaker(DataConfig(decoding_column="own"), SAMPLING, False)
    maker.make(0, Record("rows.jsonl", 1, None, "not valid JSON"))
    assert maker.missing_columns() == []
    item = maker.make(0, Record("rows.jsonl", 1, {"prompt": "a", "owm": {}}))
    assert isinstance(item, DataRow)
    assert item.overrides == {}
    [fault] = maker.missing_columns()
    assert "no column own; the rows have prompt, owm; did you mean owm?" in fault
    maker.make(1, Record("rows.jsonl", 2, {"prompt": "a", "own": None}))
    assert maker.missing_columns() == []


def test_each_distinct_set_is_validated_once(monkeypatch: pytest.MonkeyPatch):
    validated: list[dict[str, Any]] = []

    class Counting(OverrideRules):
        def _validated(self, given: Any) -> Any:
            validated.append(given)
            return super()._validated(given)

    rules = Counting(SAMPLING)
    for _ in range(3):
        assert rules.check({"seed": 1, "top_k": 2}, {}) == ({"seed": 1, "top_k": 2}, [])
        assert rules.check({"top_k": 2, "seed": 1}, {}) == ({"seed": 1, "top_k": 2}, [])
        assert rules.check({"seed": -1}, {"seed": "x.seed"})[1][0].startswith("x.seed=-1: must be")
        assert rules.check({"seed": -1}, {"seed": "y.seed"})[1][0].startswith("y.seed=-1: must be")
    assert validated == [{"seed": 1, "top_k": 2}, {"seed": -1}]
    monkeypatch.setattr(column_rows, "_MAX_KEPT_BYTES", 4 * len(b'[["seed",10]]'))
    for seed in range(20):
        rules.check({"seed": seed}, {})
    assert len(rules._known) <= 4


def test_a_row_with_too_much_of_them_fails_alone():
    for own, said in (
        ({"sequence_bias": [[[i], -1.0] for i in range(100_000)]}, "bytes; at most 1048576"),
        ({"stop": ["x" * 20] * 5000}, "own.stop="),
        ({"stop": ["x" * 70_000]}, "must be at most 1024 texts of 65536 characters together"),
    ):
        item = made(own)
        assert isinstance(item, RowFailure)
        assert said in item.reason


def test_the_order_within_a_schema_counts():
    rules = OverrideRules(SAMPLING)
    first, second = {"properties": {"a": {}, "b": {}}}, {"properties": {"b": {}, "a": {}}}
    texts = [rules.check({"json_schema": schema}, {})[0]["json_schema"] for schema in (first, second)]
    assert texts == ['{"properties":{"a":{},"b":{}}}', '{"properties":{"b":{},"a":{}}}']


def test_one_rows_overrides_are_not_anothers():
    rules = OverrideRules(SAMPLING)
    rules.check({"seed": 1}, {})[0]["seed"] = 5
    assert rules.check({"seed": 1}, {})[0] == {"seed": 1}


LORA = LoraConfig({"law": "x", "med": "y", "base": None}, "law")
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def adapted(lora: LoraConfig | None = LORA, **columns: Any) -> DataRow | RowFailure:
    maker = RowMaker(DataConfig(adapter_column="who"), DecodingParams(), False, lora=lora)
    return maker.make(0, Record("rows.jsonl", 1, {"prompt": "Hi", **columns}))


def request(lora: LoraConfig | None = LORA, **body: Any) -> DataRow | RowFailure:
    columns = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {**CHAT, **body}}
    return RowMaker(DataConfig(), DecodingParams(), True, lora=lora).make(0, Record("rows.jsonl", 1, columns))


def adapter_of(row: DataRow | RowFailure) -> str | None:
    assert isinstance(row, DataRow), row
    assert DataRow.from_json(orjson.dumps(row)) == row
    assert row.prompt().adapter == row.adapter
    return row.adapter


@pytest.mark.parametrize(
    ("columns", "adapter"),
    [
        ({"who": "med"}, "med"),
        ({"who": "base"}, "base"),
        ({"who": None}, "law"),
        ({"who": ""}, "law"),
        ({}, "law"),
        ({"lora": LoraConfig(LORA.adapters)}, None),  # without a default
    ],
)
def test_a_row_has_its_own_adapter_or_the_default(columns: dict[str, Any], adapter: str | None) -> None:
    assert adapter_of(adapted(**columns)) == adapter


@pytest.mark.parametrize("given", ["mad", 7, ["law"], {"law": 1}, True])
def test_an_adapter_that_is_not_there_is_an_error_of_the_row(given: Any) -> None:
    failure = adapted(who=given)
    assert isinstance(failure, RowFailure)
    assert failure.stage == "row"
    assert failure.reason.startswith("who: there is no adapter ")
    assert "lora.adapters has law, med, base" in failure.reason


def test_a_request_names_an_adapter_as_its_model() -> None:
    assert adapter_of(request(model="med")) == "med"
    assert adapter_of(request()) == adapter_of(request(model="")) == adapter_of(request(model=None)) == "law"
    failure = request(model="gpt-4")
    assert isinstance(failure, RowFailure)
    assert failure.reason == "body.model: there is no adapter 'gpt-4'; lora.adapters has law, med, base"
    assert adapter_of(request(None, model="gpt-4")) is None
    assert adapter_of(request(LoraConfig(), model="gpt-4")) is None


def test_adapters_that_no_row_can_have_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        RowMaker(DataConfig(), DecodingParams(), False, lora=LoraConfig(LORA.adapters))
    assert caught.value.lines == (
        "lora.adapters: law, med: no prompt would have one; give data.adapter_column=COLUMN or "
        "lora.default=law, or remove them",
    )
    RowMaker(DataConfig(), DecodingParams(), False, lora=LoraConfig(LORA.adapters, default="base"))
    RowMaker(DataConfig(), DecodingParams(), False, lora=LoraConfig({"base": None}))
