"""Mistral: [TOOL_CALLS] with a JSON list of calls, or with a name, [ARGS] and JSON; [THINK] for reasoning."""

import re
from collections.abc import Iterator

from mindbatch.message_formats.call_text import (
    BLANK,
    CallFault,
    CallText,
    ToolCall,
    arguments_call,
    call_of_object,
    json_value,
)
from mindbatch.message_formats.parser import MessageFormat

TOOL_CALLS = "[TOOL_CALLS]"
_WORD = re.compile(r"[^\[{\n]*")
_END_TOKENS = ("</s>", "<|im_end|>", "<|endoftext|>")


def _read_calls(text: CallText) -> Iterator[ToolCall]:
    text.expect(TOOL_CALLS)
    text.run(BLANK)
    if text.upcoming("["):
        yield from _read_list(text)
        return
    name = text.run(_WORD)
    if text.accept("[CALL_ID]"):
        text.run(_WORD)
    text.accept("[ARGS]")
    yield arguments_call(text, name)


def _read_list(text: CallText) -> list[ToolCall]:
    """Reads the list of the tokenizers before version 11."""
    values = json_value(text.json("["))
    if not values:
        raise CallFault("its list is empty")
    return [call_of_object(value, "arguments") for value in values]


MISTRAL = MessageFormat("mistral", (TOOL_CALLS,), _read_calls, "[THINK]", "[/THINK]", end_tokens=_END_TOKENS)
