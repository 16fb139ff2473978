"""gpt-oss: messages in OpenAI's harmony format, with a header that has a channel and a recipient.

Source: docs/format.md of github.com/openai/harmony. The prompt has `<|start|>assistant` already.
"""

import re

from mindbatch.message_formats.json_calls import arguments_call
from mindbatch.message_formats.message_reading import HandOver, MessageReading, attempt_call
from mindbatch.message_formats.piece_writer import PieceWriter
from mindbatch.message_formats.reader import BLANK, CallFault, Markers, PushedText, Steps

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ANALYSIS = f"{_CHANNEL}analysis{_MESSAGE}"
_END_TOKENS = ("<|end|>", "<|return|>", "<|call|>", "<|endoftext|>")
_BOUNDARIES = (_START, _CHANNEL, *_END_TOKENS)
_BOUNDARY = Markers(*_BOUNDARIES)
_HEADER_TEXT = re.compile(r"[^<\n]*")
_RECIPIENT = re.compile(r"\bto=(\S+)")
_FUNCTIONS = "functions."


def gpt_oss_reading(*, in_reasoning: bool, with_tools: bool) -> MessageReading:
    """Reads messages one after another. Analysis is reasoning; commentary without recipient is content."""

    def read(reader: PushedText, writer: PieceWriter) -> Steps[None]:
        def read_message(reader: PushedText, hand_over: HandOver) -> Steps[None]:
            channel, recipient = yield from _read_header(reader)
            if recipient:
                yield from _read_call(reader, recipient, hand_over, with_tools)
                return
            reader.stop_record()
            yield from _read_body(reader, writer, channel)

        if in_reasoning:
            yield from _read_body(reader, writer, "analysis")
        elif (yield from reader.upcoming(" to=", "to=")):
            yield from attempt_call(reader, writer, "", read_message, _END_TOKENS)
        while marker := (yield from reader.until(_BOUNDARY, writer.text)):
            if marker in _END_TOKENS:
                writer.end_token(reader.take(len(marker)), writer.text)
            else:
                yield from attempt_call(reader, writer, "", read_message, _END_TOKENS)

    return read


def _read_header(reader: PushedText) -> Steps[tuple[str, str]]:
    """Reads up to a message's body: its channel, and its recipient or an empty text.

    Raises CallFault where it is no header of an assistant's message.
    """
    texts: dict[str, str] = {}
    section = (yield from reader.accept(_START, _CHANNEL)) or _START
    while section != _MESSAGE:
        texts[section] = yield from reader.run(_HEADER_TEXT)
        section = yield from reader.accept(_CHANNEL, _CONSTRAIN, _MESSAGE)
        if not section or section in texts:
            raise CallFault(f"no {_MESSAGE} ends its header")
    role, channel = texts.get(_START, ""), texts.get(_CHANNEL, "")
    recipient = _RECIPIENT.search(f"{role} {channel}")
    if _RECIPIENT.sub("", role).strip() not in ("", "assistant"):
        raise CallFault("it is no message of the assistant")
    if channel.split()[:1] not in (["analysis"], ["commentary"], ["final"]):
        raise CallFault("its channel is none of analysis, commentary, final")
    return channel.split()[0], recipient[1] if recipient else ""


def _read_call(reader: PushedText, recipient: str, hand_over: HandOver, with_tools: bool) -> Steps[None]:
    """Reads a call. The token that ends it may be missing: decoding may leave out a token that stops."""
    if not with_tools or not recipient.startswith(_FUNCTIONS):
        raise CallFault(f"{recipient} is no tool that was offered")
    call = yield from arguments_call(reader, recipient.removeprefix(_FUNCTIONS))
    yield from reader.run(BLANK)
    if not (yield from reader.upcoming(*_BOUNDARIES)) and not reader.at_end:
        raise CallFault("text follows its JSON")
    hand_over(call)
    yield from reader.accept(*_END_TOKENS)


def _read_body(reader: PushedText, writer: PieceWriter, channel: str) -> Steps[None]:
    is_reasoning = channel == "analysis"
    (writer.begin_reasoning if is_reasoning else writer.begin_content)()
    yield from reader.until(_BOUNDARY, writer.reasoning if is_reasoning else writer.text)
    if is_reasoning:
        writer.end_reasoning()
    yield from reader.accept(*_END_TOKENS)
