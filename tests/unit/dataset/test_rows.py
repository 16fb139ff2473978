"""Rows of a dataset: the key, the prompt, and every fault of a row in one line that stops no other row."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.records import Record
from mindbatch.dataset.rows import DataRow, RowFailure, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.io.errors import ConfigError
from mindbatch.prompts.prompts import Prompt

TOOL = {"type": "function", "function": {"name": "f"}}
HI = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "be brief"}


def made(columns: dict[str, Any], **data: Any) -> DataRow | RowFailure:
    """What becomes of a row that stands on line 3, at position 7 of the dataset."""
    return RowMaker(DataConfig(**data), DecodingParams(), False).make(7, Record("rows.jsonl", 3, columns))


def row(columns: dict[str, Any], **data: Any) -> DataRow:
    item = made(columns, **data)
    assert isinstance(item, DataRow), item
    return item


def failure(columns: dict[str, Any], **data: Any) -> RowFailure:
    item = made(columns, **data)
    assert isinstance(item, RowFailure), item
    assert "\n" not in item.reason
    return item


def test_a_plain_row_and_what_the_engine_is_given():
    item = row({"prompt": [1, 2], "id": 4})
    assert item == DataRow(key="7", source="rows.jsonl", line=3, content={"token_ids": [1, 2]})
    assert item.prompt() == Prompt(key="7", source="rows.jsonl:3", token_ids=[1, 2])


SOURCES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "prompt": ({"prompt": "a", "messages": [HI]}, {}, {"text": "a"}),
    "messages": ({"messages": [HI]}, {}, {"messages": [HI]}),
    "a null prompt leaves the messages": ({"prompt": None, "messages": [HI]}, {}, {"messages": [HI]}),
    "messages in prompt": ({"prompt": [HI]}, {}, {"messages": [HI]}),
    "one message": ({"messages": HI}, {}, {"messages": [HI]}),
    "ShareGPT": (
        {
            "conversations": [
                {"from": "system", "value": "be brief"},
                {"from": "human", "value": "hi", "id": 1},
            ]
        },
        {},
        {"messages": [SYSTEM, HI]},
    ),
    "ShareGPT in a column": (
        {"talk": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "?"}]},
        {"messages_column": "talk"},
        {"messages": [HI, {"role": "assistant", "content": "?"}]},
    ),
    "messages under ShareGPT's name": ({"conversations": [HI]}, {}, {"messages": [HI]}),
    "tools and variables beside messages": (
        {"messages": [HI], "tools": [TOOL], "chat_template_kwargs": {"a": 1}},
        {"chat_template_kwargs": {"a": 0, "b": 2}},
        {"messages": [HI], "tools": [TOOL], "chat_template_kwargs": {"a": 1, "b": 2}},
    ),
    "tools for all, and a cell of a CSV file": (
        {"q": "hi", "how": '{"a": 1}', "t": ""},
        {"prompt_column": "q", "chat": True, "tools": [TOOL], "tools_column": "t"}
        | {"chat_template_kwargs_column": "how"},
        {"messages": [HI], "tools": [TOOL], "chat_template_kwargs": {"a": 1}},
    ),
    "a column of that name beside a text": (
        {"prompt": "hi", "tools": "hammer"},
        {"chat": True},
        {"messages": [HI]},
    ),
    "a column of that name beside a named one": (
        {"talk": [HI], "tools": 5},
        {"messages_column": "talk"},
        {"messages": [HI]},
    ),
    "prompt column": ({"q": "a", "prompt": "b"}, {"prompt_column": "q"}, {"text": "a"}),
    "token ids": ({"q": [3, 4]}, {"prompt_column": "q"}, {"token_ids": [3, 4]}),
    "messages column": ({"talk": [HI]}, {"messages_column": "talk"}, {"messages": [HI]}),
    "messages of a CSV file": (
        {"talk": '[{"role": "user", "content": "hi"}]'},
        {"messages_column": "talk"},
        {"messages": [HI]},
    ),
    "chat": ({"prompt": "hi"}, {"chat": True}, {"messages": [HI]}),
    "chat with system": ({"prompt": "hi"}, {"chat": True, "system": "be brief"}, {"messages": [SYSTEM, HI]}),
    "system before messages": ({"messages": [HI]}, {"system": "be brief"}, {"messages": [SYSTEM, HI]}),
    "template": ({"q": "a"}, {"template": "Q: {{ q }}"}, {"text": "Q: a"}),
    "template in a chat": ({"q": "hi"}, {"template": "{{ q }}", "chat": True}, {"messages": [HI]}),
    "special tokens": ({"prompt": "<|endoftext|>"}, {}, {"text": "<|endoftext|>"}),
    "line separator": ({"prompt": "a\u2028b\n"}, {}, {"text": "a\u2028b\n"}),
}


@pytest.mark.parametrize(("columns", "data", "content"), SOURCES.values(), ids=SOURCES)
def test_where_the_prompt_comes_from(columns: dict[str, Any], data: dict[str, Any], content: dict[str, Any]):
    assert row(columns, **data).content == content


BAD_PROMPTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "empty": ({"prompt": ""}, {}, "prompt: the prompt is empty"),
    "no token ids": ({"prompt": []}, {}, "prompt: the prompt is empty: no token ids"),
    "surrogate": (
        {"prompt": "a\ud83d"},
        {},
        "prompt: the prompt is not valid Unicode: lone surrogate U+D83D",
    ),
    "number": ({"q": 5}, {"prompt_column": "q"}, "q: found 5; must be a text"),
    "null": ({"prompt": None}, {}, "prompt: found null; must be a text"),
    "one of several names": ({"prompt": {"a": 1}}, {}, "prompt: found {a: 1}"),
    "several texts": (
        {"q": ["a", "b"]},
        {"prompt_column": "q"},
        "q: found a list of texts, [a, b]; a pro",
    ),
    "bad id": ({"prompt": [1, -1]}, {}, "prompt: token id -1 at position 1"),
    "huge id": ({"prompt": [1, 2**70]}, {}, "cannot be kept as JSON"),
    "ids in a chat": ({"prompt": [1]}, {"chat": True}, "token ids cannot be a chat message"),
    "role": ({"messages": [{"role": "bot", "content": ""}]}, {}, "messages[0].role='bot': must be one of"),
    "no messages": ({"talk": []}, {"messages_column": "talk"}, "talk: empty; must have a message"),
    "text for messages": ({"talk": "hi"}, {"messages_column": "talk"}, "talk: found 'hi'; must be a list"),
    "odd turns": (
        {"conversations": [{"from": "bot", "value": "x"}, {"from": "human"}]},
        {},
        "conversations[0].from='bot': must be one of human, user, gpt, chatgpt, assistant, system, tool, "
        "observation; conversations[1].value: missing; must be a text",
    ),
    "tools": ({"messages": [HI], "tools": "f"}, {}, "tools='f': must be a list of JSON objects"),
    "variables": (
        {"messages": [HI], "chat_template_kwargs": {"tools": []}},
        {},
        "chat_template_kwargs.tools: not a variable of a template",
    ),
    "two system messages": ({"messages": [SYSTEM, HI]}, {"system": "x"}, "a system message already exists"),
}


@pytest.mark.parametrize(("columns", "data", "said"), BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_what_is_no_prompt(columns: dict[str, Any], data: dict[str, Any], said: str):
    found = failure(columns, **data)
    assert said in found.reason
    assert (found.stage, found.key, found.source, found.line) == ("prompt", "7", "rows.jsonl", 3)


BAD_COLUMNS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no prompt": (
        {"question": "a", "id": 1},
        {},
        "no column prompt; the row has question, id; name the prompt with data.prompt_column or "
        "data.template, for example data.prompt_column=question",
    ),
    "misspelt": (
        {"question": "a", "two words": 1},
        {"prompt_column": "qestion"},
        "data.prompt_column: no column qestion; the row has question, 'two words'; did you mean question?",
    ),
    "no columns": ({}, {"messages_column": "talk"}, "no column talk; the row has none at all"),
    "many columns": (
        {f"c{i}": i for i in range(40)},
        {"prompt_column": "text"},
        "the row has c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 and 28 more",
    ),
    "tools without a chat": ({"prompt": "a"}, {"tools": [{"a": 1}]}, "data.tools has no effect"),
    "system without a chat": ({"prompt": "a"}, {"system": "x"}, "data.system has no effect"),
    "no key": ({"prompt": "a"}, {"key_column": "id"}, "data.key_column: no column id; the row has prompt"),
    "empty key": ({"prompt": "a", "id": ""}, {"key_column": "id"}, "id: the key is empty"),
    "null key": ({"prompt": "a", "id": None}, {"key_column": "id"}, "id=null: a key must be a text or"),
    "flag key": ({"prompt": "a", "id": True}, {"key_column": "id"}, "id=true: a key must be a text or"),
    "fraction key": ({"prompt": "a", "id": 1.0}, {"key_column": "id"}, "id=1.0: a key must be a text or"),
    "huge key": ({"prompt": "a", "id": 10**5000}, {"key_column": "id"}, "a key must be a text or"),
    "surrogate key": ({"prompt": "a", "id": "\ud83d"}, {"key_column": "id"}, "id: the key is not valid"),
}


@pytest.mark.parametrize(("columns", "data", "said"), BAD_COLUMNS.values(), ids=BAD_COLUMNS)
def test_columns_that_are_not_as_asked_for(columns: dict[str, Any], data: dict[str, Any], said: str):
    found = failure(columns, **data)
    assert said in found.reason
    assert found.stage == "row"
    assert found.key == (None if "key_column" in data else "7")


@pytest.mark.parametrize(("value", "key"), [("a b", "a b"), (12, "12"), (-(2**63), str(-(2**63)))])
def test_keys_of_a_column(value: Any, key: str):
    assert row({"id": value, "prompt": "a"}, key_column="id").key == key
    assert failure({"id": value, "prompt": ""}, key_column="id").key == key


def test_all_faults_of_a_row_at_once():
    found = failure(
        {"id": "", "prompt": [{"role": "bot"}], "own": {"top_p": 2}}, key_column="id", decoding_column="own"
    )
    assert [
        part.split(":")[0] for part in found.reason.split("; ") if part.startswith(("id", "own", "pro"))
    ] == [
        "id",
        "own.top_p=2",
        "prompt[0].role='bot'",
        "prompt[0].content",
    ]
    assert found.stage == "row"


def test_a_row_that_could_not_be_read():
    unread = Record("rows.jsonl", 3, None, "not valid JSON")
    numbered = RowMaker(DataConfig(), DecodingParams(), False).make(7, unread)
    assert numbered == RowFailure("7", "rows.jsonl", 3, "read", "not valid JSON")
    for config, is_openai in ((DataConfig(key_column="id"), False), (DataConfig(), True)):
        named = RowMaker(config, DecodingParams(), is_openai).make(7, unread)
        assert named == RowFailure(None, "rows.jsonl", 3, "read", "not valid JSON")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [70, 500, 5000])
@pytest.mark.parametrize("place", ["prompt", "messages", "id", "own"])
def test_nesting_stops_the_row_only(depth: int, place: str):
    columns = {"id": "a", "prompt": "p", "own": None, "messages": [HI]}
    columns[place] = nested(depth) if place != "messages" else [{**HI, "x": nested(depth)}]
    if place == "messages":
        del columns["prompt"]
    found = failure(columns, key_column="id", decoding_column="own")
    assert len(found.reason) < 1000


def test_a_reason_stays_printable_and_short():
    messages = [{"role": "x" * 10**4, "content": "a", "k\n" * 10**4: {1}} for _ in range(1000)]
    found = failure({"messages": messages})
    assert found.reason.isprintable()
    assert len(found.reason) < 20 * 520
    assert found.reason.endswith("and 1980 more")


def test_a_row_survives_being_stored():
    item = row({"messages": [HI], "own": {"stop": "x", "seed": 2**64 - 1}}, decoding_column="own")
    again = DataRow.from_json(orjson.dumps(item))
    assert again == item
    assert again.digest == item.digest
    assert again.params(DecodingParams()) == DecodingParams(stop=("x",), seed=2**64 - 1)


def test_the_digest_is_of_what_decides_the_result():
    first = row({"prompt": "a", "own": {"top_k": 1, "do_sample": True}}, decoding_column="own")
    elsewhere = DataRow(
        key="other",
        source="b",
        line=9,
        content={"text": "a"},
        overrides={"do_sample": True, "top_k": 1},
        extra={"model": "m"},
    )
    assert first.digest == elsewhere.digest
    assert len(first.digest) == 32
    assert row({"messages": [HI]}).digest == row({"messages": [dict(reversed(HI.items()))]}).digest
    others = [
        row({"prompt": "b", "own": {"top_k": 1, "do_sample": True}}, decoding_column="own"),
        row({"prompt": "a", "own": {"top_k": 2, "do_sample": True}}, decoding_column="own"),
        row({"prompt": "a"}),
        DataRow(key="7", source="rows.jsonl", line=3, content={"text": "a"}, adapter="x"),
        row({"prompt": [97]}),
        row({"prompt": "a"}, chat=True),
        row({"prompt": "a"}, chat=True, chat_template_kwargs={"x": 1}),
        row({"prompt": "a"}, chat=True, tools=[TOOL]),
    ]
    assert len({first.digest, *(item.digest for item in others)}) == 9


def test_columns_come_along_for_the_results():
    maker = RowMaker(DataConfig(), DecodingParams(), False, columns=["label", "n"])
    item = maker.make(0, Record("rows.jsonl", 1, {"prompt": "a", "label": {"x": [1]}}))
    assert isinstance(item, DataRow)
    assert DataRow.from_json(orjson.dumps(item)).extra == {"columns": {"label": {"x": [1]}, "n": None}}
    assert item.digest == row({"prompt": "a"}).digest
    assert maker.missing_columns() == ["output.columns: no column n; the rows have prompt, label"]
    odd = maker.make(1, Record("rows.parquet", 2, {"prompt": "a"}, unusable={"n": "is binary"}))
    assert isinstance(odd, RowFailure)
    assert odd.reason == "output.columns: column n: is binary"
    maker = RowMaker(DataConfig(tools_column="n"), DecodingParams(), False)
    odd = maker.make(1, Record("rows.parquet", 2, {"messages": [HI]}, unusable={"n": "is binary"}))
    assert isinstance(odd, RowFailure)
    assert odd.reason == "column n: is binary"
    with pytest.raises(ConfigError, match=r"output\.columns: OpenAI's requests have no columns"):
        RowMaker(DataConfig(), DecodingParams(), True, columns=["n"])


def test_tools_in_a_file(tmp_path: Path):
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([TOOL]))
    assert row({"messages": [HI]}, tools=str(file)).content["tools"] == [TOOL]
    file.write_text("[")
    with pytest.raises(ConfigError, match=r"data\.tools=.*tools\.json: not valid JSON: .* at character 1"):
        row({"messages": [HI]}, tools=str(file))
    with pytest.raises(ConfigError, match=r"data\.tools=/no: cannot be read: No such file"):
        row({"messages": [HI]}, tools="/no")


@pytest.mark.parametrize(("system", "fault"), [("", "is empty"), ("\ud83d", "is not valid")])
def test_a_bad_system_message(system: str, fault: str):
    with pytest.raises(ConfigError, match=f"data.system {fault}"):
        made({}, chat=True, system=system)


OPENAI_COLUMNS: dict[str, Any] = {
    "key_column": "id",
    "prompt_column": "q",
    "messages_column": "m",
    "template": "{{ q }}",
    "template_file": "t.jinja",
    "chat": True,
    "decoding_column": "own",
    "tools_column": "t",
    "chat_template_kwargs_column": "k",
}


@pytest.mark.parametrize("name", OPENAI_COLUMNS)
def test_columns_have_no_place_in_openai_requests(name: str):
    with pytest.raises(ConfigError, match=f"data.{name}=.*: has no effect") as caught:
        RowMaker(DataConfig(**{name: OPENAI_COLUMNS[name]}), DecodingParams(), True)
    assert len(caught.value.lines) == 1


def test_a_request_that_is_read_as_another_row_is_told_what_it_is() -> None:
    request = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi"}}
    assert failure(request).reason.endswith(
        "; as a request of OpenAI's batch files it needs data.format=openai"
    )
