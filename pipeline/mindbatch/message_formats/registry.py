"""The formats by their names, and which of them a chat template or a prompt belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from mindbatch.message_formats.deepseek import DEEPSEEK, SEPARATOR
from mindbatch.message_formats.glm4 import GLM4
from mindbatch.message_formats.gpt_oss import ANALYSIS, gpt_oss_reading
from mindbatch.message_formats.hermes import HERMES, QWEN3
from mindbatch.message_formats.llama3 import LLAMA3
from mindbatch.message_formats.message_reading import MessageReading, ReadingParser, TaggedSyntax
from mindbatch.message_formats.mistral import MISTRAL, TOOL_CALLS
from mindbatch.message_formats.pieces import MessageParser
from mindbatch.message_formats.qwen3_coder import QWEN3_CODER

_JSON_CALL = re.compile(r"""<tool_call>(?:\\n|\s)*\{\\?["']""")
"""A JSON call as a template writes or explains it, newlines and quotes escaped or not."""


class _ReadingFactory(Protocol):
    def __call__(self, *, in_reasoning: bool, with_tools: bool) -> MessageReading: ...


@dataclass(frozen=True)
class MessageFormat:
    """A way that chat models write their messages.

    needs_special_tokens: its markers are special tokens, which decoding must not skip.
    thinks: it has a place for reasoning; reasoning_opening: the marker before it.
    """

    name: str
    needs_special_tokens: bool
    thinks: bool
    reasoning_opening: str
    _reading: _ReadingFactory = field(repr=False)

    def parser(self, *, in_reasoning: bool, with_tools: bool) -> MessageParser:
        """A parser of one message.

        in_reasoning: the prompt ends within reasoning; with_tools: calls are looked for.
        """
        return ReadingParser(self._reading(in_reasoning=in_reasoning, with_tools=with_tools))


def _tagged(name: str, syntax: TaggedSyntax) -> MessageFormat:
    # Where a tokenizer hides markers, end tokens are in the text as soon as it does not.
    opening = syntax.reasoning[0] if syntax.reasoning else ""
    return MessageFormat(name, bool(syntax.end_tokens), bool(opening), opening, syntax.reading)


FORMATS: dict[str, MessageFormat] = {
    "qwen3": _tagged("qwen3", QWEN3),
    "hermes": _tagged("hermes", HERMES),
    "qwen3_coder": _tagged("qwen3_coder", QWEN3_CODER),
    "deepseek": _tagged("deepseek", DEEPSEEK),
    "glm4": _tagged("glm4", GLM4),
    "llama3": _tagged("llama3", LLAMA3),
    "mistral": _tagged("mistral", MISTRAL),
    "gpt_oss": MessageFormat("gpt_oss", True, True, ANALYSIS, gpt_oss_reading),
}

_MARKS: tuple[tuple[str, Callable[[str], object]], ...] = (
    ("gpt_oss", lambda template: ANALYSIS in template),
    ("deepseek", lambda template: SEPARATOR in template),
    ("mistral", lambda template: TOOL_CALLS in template),
    ("glm4", lambda template: "<tool_call>" in template and "<arg_key>" in template),
    ("qwen3_coder", lambda template: "<tool_call>" in template and "<function=" in template),
    ("llama3", lambda template: "<|start_header_id|>" in template and '"parameters": ' in template),
    ("qwen3", lambda template: "<think>" in template and _JSON_CALL.search(template)),
    ("hermes", _JSON_CALL.search),
)
"""Formats and the marks of their templates; the first that matches applies."""


def detect(chat_template: str) -> MessageFormat | None:
    """The format that the text of a chat template, unrendered, writes calls in; None: none that is known."""
    return next((FORMATS[name] for name, is_marked in _MARKS if is_marked(chat_template)), None)


def begins_in_reasoning(message_format: MessageFormat, prompt_end: str) -> bool:
    """True if a rendered prompt leaves reasoning open, so that the generated text goes on with it.

    prompt_end: its last characters; an opening tag before other text may be a user's.
    """
    return message_format.thinks and prompt_end.rstrip().endswith(message_format.reasoning_opening)
