"""Qwen3-Coder and Qwen3.5: <tool_call>, <function=NAME>, <parameter=KEY> with values as text."""

import re

from mindbatch.message_formats.hermes import THINK
from mindbatch.message_formats.json_calls import tagged_call
from mindbatch.message_formats.message_reading import HandOver, TaggedSyntax
from mindbatch.message_formats.reader import BLANK, PushedText, Steps

_NAME = re.compile(r"[^<>\n]*")
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""The templates write these values as Python does, so the models do."""


def _read_call(reader: PushedText, hand_over: HandOver) -> Steps[None]:
    yield from reader.expect("<function=")
    name = yield from reader.run(_NAME)
    yield from reader.expect(">")
    values: list[tuple[str, str]] = []
    yield from reader.run(BLANK)
    while (yield from reader.accept("<parameter=")):
        key = yield from reader.run(_NAME)
        yield from reader.expect(">")
        value = yield from reader.text_before("</parameter>")
        values.append((key, value.removeprefix("\n").removesuffix("\n")))
        yield from reader.run(BLANK)
    yield from reader.expect("</function>")
    yield from reader.expect("</tool_call>")
    hand_over(tagged_call(name, values, _PYTHON_WORDS))


QWEN3_CODER = TaggedSyntax({"<tool_call>": _read_call}, reasoning=THINK)
