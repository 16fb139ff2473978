"""Hermes and Qwen3: <tool_call>, a JSON object with name and arguments, </tool_call>."""

from mindbatch.message_formats.json_calls import call_of_object, json_text, json_value
from mindbatch.message_formats.message_reading import HandOver, TaggedSyntax
from mindbatch.message_formats.reader import PushedText, Steps

THINK = ("<think>", "</think>")


def _read_call(reader: PushedText, hand_over: HandOver) -> Steps[None]:
    text = yield from json_text(reader)
    call = call_of_object(json_value(text), "arguments")
    yield from reader.expect("</tool_call>")
    hand_over(call)


HERMES = TaggedSyntax({"<tool_call>": _read_call})
QWEN3 = TaggedSyntax({"<tool_call>": _read_call}, reasoning=THINK)
