"""Mistral: [TOOL_CALLS] with a JSON list of calls, or with a name, [ARGS] and JSON; [THINK] for reasoning."""

import re

from mindbatch.message_formats.json_calls import arguments_call, call_of_object, json_text, json_value
from mindbatch.message_formats.message_reading import HandOver, TaggedSyntax
from mindbatch.message_formats.reader import BLANK, CallFault, PushedText, Steps

TOOL_CALLS = "[TOOL_CALLS]"
_WORD = re.compile(r"[^\[{\n]*")
_END_TOKENS = ("</s>", "<|im_end|>", "<|endoftext|>")


def _read_calls(reader: PushedText, hand_over: HandOver) -> Steps[None]:
    yield from reader.run(BLANK)
    if (yield from reader.upcoming("[")):
        yield from _read_list(reader, hand_over)
        return
    name = yield from reader.run(_WORD)
    if (yield from reader.accept("[CALL_ID]")):
        yield from reader.run(_WORD)
    yield from reader.accept("[ARGS]")
    hand_over((yield from arguments_call(reader, name)))


def _read_list(reader: PushedText, hand_over: HandOver) -> Steps[None]:
    """Reads the list of the tokenizers before version 11, all of it before its first call is sure."""
    values = json_value((yield from json_text(reader, "[")))
    if not values:
        raise CallFault("its list is empty")
    for call in [call_of_object(value, "arguments") for value in values]:
        hand_over(call)


MISTRAL = TaggedSyntax({TOOL_CALLS: _read_calls}, reasoning=("[THINK]", "[/THINK]"), end_tokens=_END_TOKENS)
