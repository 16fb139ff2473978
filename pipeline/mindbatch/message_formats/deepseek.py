"""DeepSeek R1, V3 and V3.1: a list of calls between special words, in JSON with or without a code fence."""

import re
from collections.abc import Iterator

from mindbatch.message_formats.call_text import BLANK, CallText, ToolCall, arguments_call
from mindbatch.message_formats.hermes import THINK
from mindbatch.message_formats.parser import MessageFormat

SEPARATOR = "<｜tool▁sep｜>"
_CALLS_BEGIN, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL_BEGIN, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_WORD = re.compile(r"[^<\n]*")
_LIST_END = re.compile(rf"(\s*{_CALLS_END})*")


def _read_call(text: CallText) -> Iterator[ToolCall]:
    """Reads V3.1's NAME, separator and JSON; or R1's and V3's type, separator, NAME and fenced JSON."""
    text.accept(_CALLS_BEGIN)
    text.expect(_CALL_BEGIN)
    name = text.run(_WORD)
    text.expect(SEPARATOR)
    text.run(BLANK)
    fenced = not text.upcoming("{")
    if fenced:
        name = text.run(_WORD)
        text.expect("```json")
    call = arguments_call(text, name)
    if fenced:
        text.expect("```")
    text.expect(_CALL_END)
    text.run(_LIST_END)
    yield call


DEEPSEEK = MessageFormat("deepseek", (_CALLS_BEGIN, _CALL_BEGIN), _read_call, *THINK)
