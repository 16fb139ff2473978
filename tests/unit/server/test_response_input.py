"""A response's input becomes a chat's body; what no chat has is refused here, by name."""

import json
from typing import Any

import pytest

from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.openai_request import CHAT
from mindbatch.dataset.records import Record
from mindbatch.dataset.rows import RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.prompts.prompts import content_of
from mindbatch.server.requests import ApiError
from mindbatch.server.responses import _chat_of, chat_body


def test_items_and_settings_become_a_chats() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, {"type": "input_image"}]},
        {"type": "reasoning", "summary": []},
        call,
        {"type": "function_call_output", "call_id": "c", "output": "2"},
    ]
    form = {"type": "json_schema", "name": "a", "schema": {}}
    body = {
        "input": items,
        "instructions": "Be brief",
        "tools": [{"type": "function", "name": "f", "strict": True}],
        "text": {"format": form, "verbosity": "low"},
        "reasoning": {"effort": "low"},
        "max_output_tokens": 3,
        "truncation": "disabled",
        "include": ["reasoning.encrypted_content"],
    }
    function = {"name": "f", "arguments": "{}"}
    assert chat_body(body, [{"role": "user", "content": "before"}]) == {
        "max_completion_tokens": 3,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
        "verbosity": "low",  # refused with the row, as an image is
        "reasoning_effort": "low",
        "messages": [
            {"role": "system", "content": "Be brief"},
            {"role": "user", "content": "before"},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "input_image"}]},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "2"},
        ],
    }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input": []}, "input=[]: must be a text or a list of items"),
        ({"input": [{"type": "mesage"}]}, "input[0].type='mesage': must be one of message, "),
        ({"input": ["a"]}, "input[0]='a': must be one of message, "),
        ({"text": 5}, "text=5: must be an object with format and verbosity"),
        ({"reasoning": {"efort": 1}}, "reasoning.'efort': unknown; did you mean effort?"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]={type: web_search}: must be a function with a name"),
        (
            {"background": True, "reasoning": {"summary": "auto"}},
            "background=true: not supported; remove it; reasoning.summary='auto': not supported; remove it",
        ),
    ],
)
def test_what_no_chat_has_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat_body({"input": "Hi", **body}, [])
    assert str(caught.value).startswith(message)


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
HISTORY = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "2"},
]


def test_a_history_is_the_same_in_every_door() -> None:
    """Rows of columns, requests in batch files and of the server, responses, and prompts in Python."""
    with_nulls = [
        {"content": None, "refusal": None, "name": None, "tool_calls": None} | message for message in HISTORY
    ]
    items = [
        HISTORY[0],
        {"type": "function_call", "call_id": "c", **CALL["function"]},  # type: ignore[dict-item]
        {"type": "function_call_output", "call_id": "c", "output": "2"},
    ]
    column_rows, requests = (RowMaker(DataConfig(), DecodingParams(), openai) for openai in (False, True))

    def requested(messages: list[Any]) -> Any:
        body = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"messages": messages}}
        return requests.make(0, Record("rows.jsonl", 1, body))

    rows = [requested(chat_body({"input": items}, [])["messages"])]
    for messages in (HISTORY, with_nulls):
        rows += [requested(messages), column_rows.make(0, Record("rows.jsonl", 1, {"messages": messages}))]
        text = {"messages": json.dumps(messages)}  # as CSV has it
        rows.append(column_rows.make(0, Record("rows.csv", 1, text)))
        assert content_of(messages)["messages"] == HISTORY
    assert [row.content["messages"] for row in rows] == [HISTORY] * len(rows)


@pytest.mark.parametrize(
    "part",
    [{"metadata": {"a": "x" * 9_000_000}}, {"text": {"a": "x" * 9_000_000}}, {"user": "x" * 9_000_000}],
)
def test_what_a_response_repeats_is_bounded(part: dict[str, Any]) -> None:
    service: Any = None
    with pytest.raises(ApiError, match=f"{[*part][0]}: 9000.* bytes, repeated in the response"):
        _chat_of(service, {"input": "a", **part})
