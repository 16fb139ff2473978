"""Reads the format of GLM-4 up to 0414: the name of a function, a line break, and JSON."""

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from mindbatch.message_formats.call_text import BLANK, CallError, CallText, ToolCall, arguments_call
from mindbatch.message_formats.parser import MessageFormat

_NEXT = "<|assistant|>"
_ENDS = ("<|observation|>", "<|user|>", "<|endoftext|>")
_LINE = re.compile(r"[^\n]*")


def _read_call(text: CallText) -> Iterator[ToolCall]:
    call = arguments_call(text, text.run(_LINE))
    text.run(BLANK)
    if not text.at_end and not text.accept(_NEXT) and not text.upcoming(*_ENDS):
        raise CallError("text follows its JSON")
    yield call


class _ByFunction(MessageFormat):
    def for_functions(self, names: Collection[str]) -> MessageFormat:
        return replace(self, calls=tuple(f"{name}\n{{" for name in names))


GLM = _ByFunction("glm", (), _read_call, end_tokens=_ENDS, template_marks=("可用工具", r"<\|observation\|>"))
