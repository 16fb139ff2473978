"""Llama 3.1 to 3.3: a message that is JSON with name and parameters, or several parted by semicolons."""

from collections.abc import Iterator

from mindbatch.message_formats.call_text import (
    BLANK,
    CallFault,
    CallText,
    ToolCall,
    call_of_object,
    json_value,
)
from mindbatch.message_formats.parser import MessageFormat

_PYTHON_TAG = "<|python_tag|>"
_END_TOKENS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>")


def _read_calls(text: CallText) -> Iterator[ToolCall]:
    """Reads calls up to the end of the message: JSON with other text after it is an answer, not a call."""
    text.accept(_PYTHON_TAG)
    while True:
        call = call_of_object(json_value(text.json()), "parameters", "arguments")
        text.run(BLANK)
        if not text.at_end and not text.upcoming(";", _PYTHON_TAG, *_END_TOKENS):
            raise CallFault("text follows its JSON")
        yield call
        if not text.accept(";"):
            return
        text.run(BLANK)
        if text.at_end or text.upcoming(*_END_TOKENS):
            return


LLAMA3 = MessageFormat("llama3", (_PYTHON_TAG,), _read_calls, end_tokens=_END_TOKENS, whole_message_call="{")
