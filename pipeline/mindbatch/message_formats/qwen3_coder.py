"""Qwen3-Coder and Qwen3.5: <tool_call>, <function=NAME>, <parameter=KEY> with values as text."""

import re
from collections.abc import Iterator

from mindbatch.message_formats.call_text import BLANK, CallText, ToolCall, tagged_call
from mindbatch.message_formats.hermes import THINK, TOOL_CALL
from mindbatch.message_formats.parser import MessageFormat

_NAME = re.compile(r"[^<>\n]*")
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""The templates write these values as Python does, so the models do."""


def _read_call(text: CallText) -> Iterator[ToolCall]:
    text.expect(TOOL_CALL)
    text.expect("<function=")
    name = text.run(_NAME)
    text.expect(">")
    values: list[tuple[str, str]] = []
    text.run(BLANK)
    while text.accept("<parameter="):
        key = text.run(_NAME)
        text.expect(">")
        values.append((key, text.before("</parameter>").removeprefix("\n").removesuffix("\n")))
        text.run(BLANK)
    text.expect("</function>")
    text.expect("</tool_call>")
    yield tagged_call(name, values, _PYTHON_WORDS)


QWEN3_CODER = MessageFormat("qwen3_coder", (TOOL_CALL,), _read_call, *THINK)
