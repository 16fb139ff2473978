"""Which adapter a row is computed with: its own, the default, or none; and names that there are not."""

from typing import Any

import orjson
import pytest

from mindbatch.config.lora_schema import LoraConfig
from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.records import Record
from mindbatch.dataset.rows import DataRow, RowFailure, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.io.errors import ConfigError

LORA = LoraConfig({"law": "x", "med": "y", "base": None}, "law")
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def made(lora: LoraConfig | None = LORA, **columns: Any) -> DataRow | RowFailure:
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
    ],
)
def test_a_row_has_its_own_adapter_or_the_default(columns: dict[str, Any], adapter: str) -> None:
    assert adapter_of(made(**columns)) == adapter


def test_without_a_default_a_row_that_names_none_has_none() -> None:
    assert adapter_of(made(LoraConfig(LORA.adapters))) is None


@pytest.mark.parametrize("given", ["mad", 7, ["law"], {"law": 1}, True])
def test_an_adapter_that_is_not_there_is_an_error_of_the_row(given: Any) -> None:
    failure = made(who=given)
    assert isinstance(failure, RowFailure)
    assert failure.stage == "row"
    assert failure.reason.startswith("who: there is no adapter ")
    assert "lora.adapters has law, med, base" in failure.reason


def test_rows_differ_by_their_adapters() -> None:
    rows = [made(who=name) for name in ("law", "med", None)]
    law, med, default = (row.digest for row in rows if isinstance(row, DataRow))
    assert law == default != med


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
    assert caught.value.faults == (
        "lora.adapters: law, med: no prompt would have one; give data.adapter_column=COLUMN or "
        "lora.default=law, or remove them",
    )
    RowMaker(DataConfig(), DecodingParams(), False, lora=LoraConfig(LORA.adapters, default="base"))
    RowMaker(DataConfig(), DecodingParams(), False, lora=LoraConfig({"base": None}))
