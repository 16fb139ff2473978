"""Reads gpt-oss's messages in OpenAI's harmony format, whose header has a channel and a recipient.

Source: docs/format.md of github.com/openai/harmony. The prompt has `<|start|>assistant` already.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from mindbatch.message_formats.call_text import (
    BLANK,
    CallError,
    CallText,
    Content,
    Reasoning,
    ToolCall,
    arguments_call,
)
from mindbatch.message_formats.parser import MessageFormat

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ANALYSIS = f"{_CHANNEL}analysis{_MESSAGE}"
_END_TOKENS = ("<|end|>", "<|return|>", "<|call|>", "<|endoftext|>")
_BOUNDARIES = (_START, _CHANNEL, *_END_TOKENS)
_HEADER_TEXT = re.compile(r"[^<\n]*")
_RECIPIENT = re.compile(r"\bto=(\S+)")
_FUNCTIONS = "functions."


def _read_header(text: CallText) -> tuple[str, str]:
    """Reads the header of a message; returns its channel, and its recipient or an empty text.

    Raises CallError if it is not the header of an assistant's message.
    """
    texts: dict[str, str] = {}
    section = text.accept(_START, _CHANNEL) or _START
    while section != _MESSAGE:
        texts[section] = text.run(_HEADER_TEXT)
        section = text.accept(_CHANNEL, _CONSTRAIN, _MESSAGE)
        if not section or section in texts:
            raise CallError(f"no {_MESSAGE} ends its header")
    role, channel = texts.get(_START, ""), texts.get(_CHANNEL, "")
    recipient = _RECIPIENT.search(f"{role} {channel}")
    if _RECIPIENT.sub("", role).strip() not in ("", "assistant"):
        raise CallError("it is not a message of the assistant")
    if channel.split()[:1] not in (["analysis"], ["commentary"], ["final"]):
        raise CallError("its channel must be analysis, commentary or final")
    return channel.split()[0], recipient[1] if recipient else ""


def _read_call(text: CallText) -> Iterator[ToolCall]:
    """Reads a call. Its end token may be missing, because decoding may drop the stop token."""
    _, recipient = _read_header(text)
    if not recipient.startswith(_FUNCTIONS):
        raise CallError(f"{recipient} is not an offered tool")
    call = arguments_call(text, recipient.removeprefix(_FUNCTIONS))
    text.run(BLANK)
    if not text.at_end and not text.upcoming(*_BOUNDARIES):
        raise CallError("text follows its JSON")
    text.accept(*_END_TOKENS)
    yield call


def _refuse_call(text: CallText) -> Iterator[ToolCall]:
    _, recipient = _read_header(text)
    raise CallError(f"{recipient} is not an offered tool")


class _Harmony(MessageFormat):
    """Several messages in sequence: analysis is reasoning, commentary without recipient is content."""

    def without_tools(self) -> MessageFormat:
        return replace(self, read_calls=_refuse_call)

    def parts(self, text: CallText, is_complete: bool) -> Iterator[ToolCall | Reasoning | Content]:
        start = text.position
        channel, recipient = _read_header(text)
        if recipient:
            text.position = start
            yield from super().parts(text, is_complete)
            return
        body = "\n" + text.until(*_BOUNDARIES)
        text.accept(*_END_TOKENS)
        yield Reasoning(body) if channel == "analysis" else Content(body)


GPT_OSS = _Harmony(
    "gpt_oss",
    calls=(_START, _CHANNEL),
    read_calls=_read_call,
    reasoning_opening=_ANALYSIS,
    end_tokens=_END_TOKENS,
    whole_message_call="to=",
    template_marks=(re.escape(_ANALYSIS),),
)
