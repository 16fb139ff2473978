"""Hermes and Qwen3: <tool_call>, a JSON object with name and arguments, </tool_call>."""

from collections.abc import Iterator

from mindbatch.message_formats.call_text import CallText, ToolCall, call_of_object, json_value
from mindbatch.message_formats.parser import MessageFormat

TOOL_CALL = "<tool_call>"
THINK = ("<think>", "</think>")


def _read_call(text: CallText) -> Iterator[ToolCall]:
    text.expect(TOOL_CALL)
    call = call_of_object(json_value(text.json()), "arguments")
    text.expect("</tool_call>")
    yield call


HERMES = MessageFormat("hermes", (TOOL_CALL,), _read_call)
QWEN3 = MessageFormat("qwen3", (TOOL_CALL,), _read_call, *THINK)
