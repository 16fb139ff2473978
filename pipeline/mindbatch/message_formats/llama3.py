"""Llama 3.1 to 3.3: a message that is JSON with name and parameters, or several parted by semicolons."""

from mindbatch.message_formats.json_calls import call_of_object, json_text, json_value
from mindbatch.message_formats.message_reading import HandOver, TaggedSyntax
from mindbatch.message_formats.reader import BLANK, CallFault, PushedText, Steps

_PYTHON_TAG = "<|python_tag|>"
_END_TOKENS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>")


def _read_calls(reader: PushedText, hand_over: HandOver) -> Steps[None]:
    """Reads calls up to the end of the message: JSON with other text after it is an answer, not a call."""
    while True:
        text = yield from json_text(reader)
        call = call_of_object(json_value(text), "parameters", "arguments")
        yield from reader.run(BLANK)
        following = yield from reader.upcoming(";", _PYTHON_TAG, *_END_TOKENS)
        if not following and not reader.at_end:
            raise CallFault("text follows its JSON")
        hand_over(call)
        if following != ";":
            return
        reader.take(1)
        yield from reader.run(BLANK)
        if reader.at_end or (yield from reader.upcoming(*_END_TOKENS)):
            return


LLAMA3 = TaggedSyntax({_PYTHON_TAG: _read_calls}, end_tokens=_END_TOKENS, whole_message_call=_read_calls)
