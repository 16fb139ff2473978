"""The formats by their names, and which of them a chat template or a prompt belongs to."""

import re
from collections.abc import Callable

from mindbatch.message_formats.deepseek import DEEPSEEK, SEPARATOR
from mindbatch.message_formats.glm4 import GLM4
from mindbatch.message_formats.gpt_oss import ANALYSIS, GPT_OSS
from mindbatch.message_formats.hermes import HERMES, QWEN3
from mindbatch.message_formats.llama3 import LLAMA3
from mindbatch.message_formats.mistral import MISTRAL, TOOL_CALLS
from mindbatch.message_formats.parser import MessageFormat
from mindbatch.message_formats.qwen3_coder import QWEN3_CODER

_JSON_CALL = re.compile(r"""<tool_call>(?:\\n|\s)*\{\\?["']""")
"""A JSON call as a template writes or explains it, newlines and quotes escaped or not."""

FORMATS = {
    format.name: format for format in (QWEN3, HERMES, QWEN3_CODER, DEEPSEEK, GLM4, LLAMA3, MISTRAL, GPT_OSS)
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
    opening = message_format.reasoning_opening
    return bool(opening) and prompt_end.rstrip().endswith(opening)
