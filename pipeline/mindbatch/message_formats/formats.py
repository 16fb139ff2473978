"""Lists the formats of messages in the order of detection, and defines that of a forced call."""

from collections.abc import Iterator
from dataclasses import replace

from mindbatch.message_formats import NAMES
from mindbatch.message_formats.call_text import CallText, ToolCall, call_of_object, json_value
from mindbatch.message_formats.glm import GLM
from mindbatch.message_formats.gpt_oss import GPT_OSS
from mindbatch.message_formats.json_formats import (
    APERTUS,
    COHERE,
    COMMAND_R,
    DEEPSEEK,
    FUNCTOOLS,
    GIGACHAT,
    GRANITE,
    HERMES,
    HUNYUAN,
    KIMI_K2,
    LLAMA3,
    MISTRAL,
    NEMOTRON,
    QWEN3,
)
from mindbatch.message_formats.parser import MessageFormat
from mindbatch.message_formats.text_formats import (
    DEEPSEEK_V32,
    GEMMA4,
    GLM4,
    LFM2,
    MINIMAX_M2,
    OLMO3,
    PYTHONIC,
    QWEN3_CODER,
    SEED_OSS,
)


def _read_object(text: CallText) -> Iterator[ToolCall]:
    yield call_of_object(json_value(text.json()), "arguments")


FORCED_CALL = MessageFormat("forced", (), _read_object, whole_message_call="{")
"""The format of a forced call of any model: the whole message is an object with name and arguments."""


def forced_call(format: MessageFormat | None) -> MessageFormat:
    """Returns the format of a forced call after reasoning in the model's own format."""
    if format is None or not format.reasoning_closing:
        return FORCED_CALL
    tags = {name: getattr(format, name) for name in ("reasoning_opening", "reasoning_closing", "end_tokens")}
    return replace(FORCED_CALL, **tags)


BY_MARKS = (
    GPT_OSS,
    DEEPSEEK,
    DEEPSEEK_V32,
    KIMI_K2,
    LFM2,
    SEED_OSS,
    MINIMAX_M2,
    GEMMA4,
    COHERE,
    APERTUS,
    GRANITE,
    MISTRAL,
    NEMOTRON,
    GIGACHAT,
    FUNCTOOLS,
    GLM4,
    QWEN3_CODER,
    HUNYUAN,
    OLMO3,
    COMMAND_R,
    GLM,
    PYTHONIC,
    LLAMA3,
    QWEN3,
    HERMES,
)
"""The first format whose marks a template has is used; formats with common marks are last."""
FORMATS = {name: next(format for format in BY_MARKS if format.name == name) for name in NAMES}
