"""DeepSeek R1, V3 and V3.1: a list of calls between special words, in JSON with or without a code fence."""

import re

from mindbatch.message_formats.hermes import THINK
from mindbatch.message_formats.json_calls import arguments_call
from mindbatch.message_formats.message_reading import HandOver, TaggedSyntax
from mindbatch.message_formats.reader import BLANK, PushedText, Steps

SEPARATOR = "<｜tool▁sep｜>"
_CALLS_BEGIN, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL_BEGIN, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_WORD = re.compile(r"[^<\n]*")


def _read_first_call(reader: PushedText, hand_over: HandOver) -> Steps[None]:
    yield from reader.expect(_CALL_BEGIN)
    yield from _read_call(reader, hand_over)


def _read_call(reader: PushedText, hand_over: HandOver) -> Steps[None]:
    """Reads V3.1's NAME, separator and JSON; or R1's and V3's type, separator, NAME and fenced JSON."""
    name = yield from reader.run(_WORD)
    yield from reader.expect(SEPARATOR)
    yield from reader.run(BLANK)
    fenced = not (yield from reader.upcoming("{"))
    if fenced:
        name = yield from reader.run(_WORD)
        yield from reader.expect("```json")
    call = yield from arguments_call(reader, name)
    if fenced:
        yield from reader.expect("```")
    yield from reader.expect(_CALL_END)
    hand_over(call)


DEEPSEEK = TaggedSyntax(
    {_CALLS_BEGIN: _read_first_call, _CALL_BEGIN: _read_call}, reasoning=THINK, call_ends=(_CALLS_END,)
)
