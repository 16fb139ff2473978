"""A constraint of a chat whose template opens the reasoning: from the row to the message."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bigram_model import write_bigram_model
from mindbatch import LLM, DecodingParams
from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.records import Record
from mindbatch.dataset.rows import DataRow, RowMaker
from mindbatch.engine.request import result_body
from mindbatch.run.openai_response import completion
from mindbatch.run.result_files import message_format
from mindbatch.run.result_rows import FinishedRow, OutputOptions

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}<think>\n"
    "{% if enable_thinking is defined %}</think>\n{% endif %}"
)
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
SCHEMA["additionalProperties"] = False
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
FORMED = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}


@pytest.fixture(scope="module", params=["characters", "control tokens"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """Of the tags as text and as control tokens, which decoding leaves out of a text."""
    control = ["<think>", "</think>"] if request.param == "control tokens" else []
    # And then whatever comes, which no JSON begins with.
    pieces = ["\n", "a", "b", *(["</think>"] if control else "</think>")]
    return LLM(write_bigram_model(tmp_path_factory.mktemp("model") / "m", pieces, TEMPLATE, control))


def messages_of(llm: LLM, **body: Any) -> list[tuple[dict[str, Any], str]]:
    """The messages of the answer, each with its finish reason."""
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 150} | body
    columns = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": asked}
    format = message_format("qwen3", llm.tokenizer)
    maker = RowMaker(DataConfig(), DecodingParams(), True, message_format=format)
    row = maker.make(0, Record("rows.jsonl", 1, columns))
    assert isinstance(row, DataRow), row
    prompt, params = row.prompt("2026-01-01"), row.params(DecodingParams())
    (output,) = [result for step in llm.steps([(prompt, params)]) for result in step.finished]
    assert output.error is None
    end = llm.required_tokenizer.end_of(output.prompt_token_ids)
    options = OutputOptions(message_format=format, prompt_end=lambda row: end)
    choices = completion(FinishedRow(row, result_body(output)), options)["choices"]
    return [(choice["message"], choice["finish_reason"]) for choice in choices]


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "samples": {"n": 3, "temperature": 0.5},
    "beams": {"n": 2, "use_beam_search": True},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_content_follows_the_constraint_and_the_reasoning_is_free(llm: LLM, way: dict[str, Any]) -> None:
    for message, reason in messages_of(llm, **FORMED, **way):
        assert (message["reasoning_content"], reason) == ("ab", "stop")
        assert json.loads(message["content"]) in ({"a": 1}, {"a": 2})
    for message, _ in messages_of(llm, guided_regex="[0-9]{3}", **way):
        assert re.fullmatch("[0-9]{3}", message["content"])
    for message, reason in messages_of(llm, tools=[TOOL], tool_choice="required", **way):
        assert (message["reasoning_content"], message["content"], reason) == ("ab", None, "tool_calls")
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) in ({"a": 1}, {"a": 2})


def test_reasoning_that_the_model_opens_itself_is_free_too(tmp_path: Path) -> None:
    template = TEMPLATE.replace("<think>\n{%", "{%").replace("</think>", "<think>\n\n</think>\n")
    pieces = ["\n", "<think>", "a", "b", "</think>"]
    model = LLM(write_bigram_model(tmp_path / "m", pieces, template, ["<think>", "</think>"]))
    for way in WAYS.values():
        for message, reason in messages_of(model, **FORMED, **way):
            assert (message["reasoning_content"], reason) == ("ab", "stop")
            assert json.loads(message["content"]) in ({"a": 1}, {"a": 2})
    for message, _ in messages_of(model, tools=[TOOL], tool_choice="required"):
        assert (message["reasoning_content"], message["content"]) == ("ab", None)
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) in ({"a": 1}, {"a": 2})
    ((message, _),) = messages_of(model, **FORMED, chat_template_kwargs={"enable_thinking": False})
    assert "reasoning_content" not in message
    assert json.loads(message["content"]) in ({"a": 1}, {"a": 2})


def test_an_end_token_is_no_content_where_control_tokens_are_shown(llm: LLM) -> None:
    """Without a constraint, whose output is complete before one comes."""
    end = {
        "logit_bias": {"256": 60},
        "max_tokens": 30,
        "temperature": 0,
    }  # less than what the script is worth
    ((message, reason),) = messages_of(llm, **end)
    assert (message["content"], message["reasoning_content"], reason) == ("", "ab", "stop")
