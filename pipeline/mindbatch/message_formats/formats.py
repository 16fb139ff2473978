"""The formats of the model families: how each writes its calls, and the marks of its chat template."""

import re
from collections.abc import Iterator
from dataclasses import replace

from mindbatch.message_formats import NAMES
from mindbatch.message_formats.call_text import (
    BLANK,
    CallError,
    CallText,
    ToolCall,
    arguments_call,
    call_of_object,
    json_value,
    tagged_call,
)
from mindbatch.message_formats.gpt_oss import GPT_OSS
from mindbatch.message_formats.parser import MessageFormat

_TOOL_CALL = "<tool_call>"
_THINK = ("<think>", "</think>")
_JSON_CALL = r"""<tool_call>(?:\\n|\s)*\{\\?["']"""
"""A JSON call as a template writes or explains it, newlines and quotes escaped or not."""
_NAME = re.compile(r"[^<\n]*")


def _read_json(text: CallText) -> Iterator[ToolCall]:
    text.expect(_TOOL_CALL)
    call = call_of_object(json_value(text.json()), "arguments")
    text.expect("</tool_call>")
    yield call


HERMES = MessageFormat("hermes", (_TOOL_CALL,), _read_json, template_marks=(_JSON_CALL,))
"""Hermes 2 and 3: an object with name and arguments between tags."""
QWEN3 = MessageFormat("qwen3", (_TOOL_CALL,), _read_json, *_THINK, template_marks=("<think>", _JSON_CALL))

_NAME_IN_TAG = re.compile(r"[^<>\n]*")
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Qwen's templates write these values as Python does, so the models do."""


def _read_functions(text: CallText) -> Iterator[ToolCall]:
    text.expect(_TOOL_CALL)
    text.expect("<function=")
    name = text.run(_NAME_IN_TAG)
    text.expect(">")
    values: list[tuple[str, str]] = []
    text.run(BLANK)
    while text.accept("<parameter="):
        key = text.run(_NAME_IN_TAG)
        text.expect(">")
        values.append((key, text.before("</parameter>").removeprefix("\n").removesuffix("\n")))
        text.run(BLANK)
    text.expect("</function>")
    text.expect("</tool_call>")
    yield tagged_call(name, values, _PYTHON_WORDS)


QWEN3_CODER = MessageFormat(
    "qwen3_coder", (_TOOL_CALL,), _read_functions, *_THINK, template_marks=("<tool_call>", "<function=")
)
"""Qwen3-Coder and Qwen3.5: <function=NAME>, <parameter=KEY> with values as text."""


def _read_pairs(text: CallText) -> Iterator[ToolCall]:
    text.expect(_TOOL_CALL)
    text.run(BLANK)
    name = text.run(_NAME)
    values: list[tuple[str, str]] = []
    text.run(BLANK)
    while text.accept("<arg_key>"):
        key = text.before("</arg_key>")
        text.expect("<arg_value>")
        values.append((key.strip(), text.before("</arg_value>")))
        text.run(BLANK)
    text.expect("</tool_call>")
    yield tagged_call(name, values, {})


GLM4 = MessageFormat("glm4", (_TOOL_CALL,), _read_pairs, *_THINK, template_marks=("<tool_call>", "<arg_key>"))
"""GLM-4.5 to 4.7: the name, then <arg_key> and <arg_value> in turn."""

_SEPARATOR = "<｜tool▁sep｜>"
_CALLS_BEGIN, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL_BEGIN, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_LIST_END = re.compile(rf"(\s*{_CALLS_END})*")


def _read_between_words(text: CallText) -> Iterator[ToolCall]:
    """Reads V3.1's NAME, separator and JSON; or R1's and V3's type, separator, NAME and fenced JSON."""
    text.accept(_CALLS_BEGIN)
    text.expect(_CALL_BEGIN)
    name = text.run(_NAME)
    text.expect(_SEPARATOR)
    text.run(BLANK)
    fenced = not text.upcoming("{")
    if fenced:
        name = text.run(_NAME)
        text.expect("```json")
    call = arguments_call(text, name)
    if fenced:
        text.expect("```")
    text.expect(_CALL_END)
    text.run(_LIST_END)
    yield call


DEEPSEEK = MessageFormat(
    "deepseek", (_CALLS_BEGIN, _CALL_BEGIN), _read_between_words, *_THINK, template_marks=(_SEPARATOR,)
)
"""DeepSeek R1, V3 and V3.1: a list of calls between special words."""

_PYTHON_TAG = "<|python_tag|>"
_LLAMA_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>")


def _read_message(text: CallText) -> Iterator[ToolCall]:
    """Reads calls up to the end of the message: JSON with other text after it is an answer, not a call."""
    text.accept(_PYTHON_TAG)
    while True:
        call = call_of_object(json_value(text.json()), "parameters", "arguments")
        text.run(BLANK)
        if not text.at_end and not text.upcoming(";", _PYTHON_TAG, *_LLAMA_ENDS):
            raise CallError("text follows its JSON")
        yield call
        if not text.accept(";"):
            return
        text.run(BLANK)
        if text.at_end or text.upcoming(*_LLAMA_ENDS):
            return


LLAMA3 = MessageFormat(
    "llama3",
    (_PYTHON_TAG,),
    _read_message,
    end_tokens=_LLAMA_ENDS,
    whole_message_call="{",
    template_marks=(r"<\|start_header_id\|>", '"parameters": '),
)
"""Llama 3.1 to 3.3: a message that is JSON with name and parameters, or several parted by semicolons."""

_TOOL_CALLS = "[TOOL_CALLS]"
_WORD = re.compile(r"[^\[{\n]*")


def _read_list_or_named(text: CallText) -> Iterator[ToolCall]:
    """Reads a JSON list, of the tokenizers before version 11; or a name, [ARGS] and JSON."""
    text.expect(_TOOL_CALLS)
    text.run(BLANK)
    if text.upcoming("["):
        if not (values := json_value(text.json("["))):
            raise CallError("its list is empty")
        yield from [call_of_object(value, "arguments") for value in values]
        return
    name = text.run(_WORD)
    if text.accept("[CALL_ID]"):
        text.run(_WORD)
    text.accept("[ARGS]")
    yield arguments_call(text, name)


MISTRAL = MessageFormat(
    "mistral",
    (_TOOL_CALLS,),
    _read_list_or_named,
    *("[THINK]", "[/THINK]"),
    end_tokens=("</s>", "<|im_end|>", "<|endoftext|>"),
    template_marks=(re.escape(_TOOL_CALLS),),
)


def _read_object(text: CallText) -> Iterator[ToolCall]:
    yield call_of_object(json_value(text.json()), "arguments")


FORCED_CALL = MessageFormat("forced", (), _read_object, whole_message_call="{")
"""A call that was forced, of whatever model: the whole message is an object with name and arguments."""


def forced_call(format: MessageFormat | None) -> MessageFormat:
    """A call that was forced, behind the reasoning of a model that writes messages in a format."""
    if format is None or not format.reasoning_closing:
        return FORCED_CALL
    tags = {name: getattr(format, name) for name in ("reasoning_opening", "reasoning_closing", "end_tokens")}
    return replace(FORCED_CALL, **tags)


_BY_MARKS = (GPT_OSS, DEEPSEEK, MISTRAL, GLM4, QWEN3_CODER, LLAMA3, QWEN3, HERMES)
"""The first whose marks a template has applies."""
FORMATS = {name: next(format for format in _BY_MARKS if format.name == name) for name in NAMES}


def detect(chat_template: str) -> MessageFormat | None:
    """The format that the text of a chat template, unrendered, writes calls in; None: none that is known."""
    for format in _BY_MARKS:
        if all(re.search(mark, chat_template) for mark in format.template_marks):
            return format
    return None
