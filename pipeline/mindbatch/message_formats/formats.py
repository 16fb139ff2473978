"""The formats of the model families: how each writes reasoning and calls, and the marks of its template."""

import re
from collections.abc import Iterator
from dataclasses import replace

from mindbatch.message_formats import NAMES
from mindbatch.message_formats.call_text import CallText, ToolCall, call_of_object, json_value
from mindbatch.message_formats.glm import GLM
from mindbatch.message_formats.gpt_oss import GPT_OSS
from mindbatch.message_formats.json_calls import (
    DEEPSEEK_MARKERS,
    KIMI_MARKERS,
    LIST_TAG,
    TOOL_CALLS,
    JsonCalls,
    MessageCalls,
    apertus_call,
    cohere_call,
    deepseek_calls,
    hunyuan_calls,
    kimi_calls,
    mistral_calls,
)
from mindbatch.message_formats.parser import MessageFormat
from mindbatch.message_formats.python_calls import GEMMA_TAG, PythonCalls, gemma_calls
from mindbatch.message_formats.text_calls import (
    BY_SCHEMA,
    DSML_TAGS,
    PYTHON_WORDS,
    TaggedCalls,
    dsml_calls,
    glm_calls,
)

_TOOL_CALL, _TOOL_CALL_END = "<tool_call>", "</tool_call>"
_THINK = ("<think>", "</think>")
_JSON_CALL = r"""<tool_call>(?:\\n|\s)*\{\\?["']"""
"""A JSON call as a template writes or explains it, newlines and quotes escaped or not."""
_CHATML_ENDS = ("<|im_end|>", "<|endoftext|>")

_TAGGED_JSON = JsonCalls((_TOOL_CALL,), _TOOL_CALL_END)
HERMES = MessageFormat(
    "hermes", (_TOOL_CALL,), _TAGGED_JSON, template_marks=(_JSON_CALL,), traces=(_TOOL_CALL_END,)
)
"""Hermes, Granite 4, EXAONE 4, ERNIE 4.5, SmolLM 3: an object with name and arguments between tags."""
QWEN3 = MessageFormat(
    "qwen3",
    (_TOOL_CALL,),
    _TAGGED_JSON,
    *_THINK,
    template_marks=("<think>", _JSON_CALL),
    traces=(_TOOL_CALL_END,),
)

_FUNCTION = ("<function=", ">", "</function>")
QWEN3_CODER = MessageFormat(
    "qwen3_coder",
    (_TOOL_CALL,),
    TaggedCalls(
        (_TOOL_CALL, _TOOL_CALL_END),
        _FUNCTION,
        ("<parameter=", "</parameter>"),
        {">": BY_SCHEMA},
        padding="\n",
        words=PYTHON_WORDS,
    ),
    *_THINK,
    template_marks=("<tool_call>", "<function="),
    traces=("<function=", "<parameter=", "</parameter>", "</function>", _TOOL_CALL_END),
)
"""Qwen3-Coder and Qwen3.5: <function=NAME>, <parameter=KEY> with values as text."""

_SEED_CALL = "<seed:tool_call>"
SEED_OSS = MessageFormat(
    "seed_oss",
    (_SEED_CALL,),
    TaggedCalls(
        (_SEED_CALL, "</seed:tool_call>"), _FUNCTION, ("<parameter=", "</parameter>"), {">": BY_SCHEMA}
    ),
    *("<seed:think>", "</seed:think>"),
    template_marks=(_SEED_CALL,),
    traces=("<function=", "</function>", "</seed:tool_call>"),
)

_MINIMAX_CALL = "<minimax:tool_call>"
MINIMAX_M2 = MessageFormat(
    "minimax_m2",
    (_MINIMAX_CALL,),
    TaggedCalls(
        (_MINIMAX_CALL, "</minimax:tool_call>"),
        ('<invoke name="', '">', "</invoke>"),
        ('<parameter name="', "</parameter>"),
        {'">': BY_SCHEMA},
    ),
    *_THINK,
    template_marks=(_MINIMAX_CALL,),
    traces=("<invoke name=", "</invoke>", "</minimax:tool_call>"),
)

DEEPSEEK_V32 = MessageFormat(
    "deepseek_v32",
    DSML_TAGS,
    dsml_calls,
    *_THINK,
    template_marks=("｜DSML｜",),
    traces=("<｜DSML｜", "</｜DSML｜"),
)

GLM4 = MessageFormat(
    "glm4",
    (_TOOL_CALL,),
    glm_calls,
    *_THINK,
    template_marks=("<tool_call>", "<arg_key>"),
    traces=("<arg_key>", "<arg_value>", _TOOL_CALL_END),
)
"""GLM-4.5 to 5: the name, then <arg_key> and <arg_value> in turn."""

DEEPSEEK = MessageFormat(
    "deepseek",
    DEEPSEEK_MARKERS,
    deepseek_calls,
    *_THINK,
    template_marks=("<｜tool▁sep｜>",),
    traces=("<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
)
"""DeepSeek R1, V3 and V3.1: a list of calls between special words."""

KIMI_K2 = MessageFormat(
    "kimi_k2",
    KIMI_MARKERS,
    kimi_calls,
    *_THINK,
    end_tokens=("<|im_end|>", "[EOS]"),
    template_marks=(re.escape(KIMI_MARKERS[1]),),
    traces=("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
)

_LFM_TAG = ("<|tool_call_start|>", "<|tool_call_end|>")
LFM2 = MessageFormat(
    "lfm2",
    _LFM_TAG[:1],
    PythonCalls(_LFM_TAG),
    *_THINK,
    end_tokens=_CHATML_ENDS,
    template_marks=(r"<\|tool_(?:call|list)_start\|>|List of tools: ",),
    traces=_LFM_TAG[1:],
)
"""LFM2 and 2.5: a list of calls as Python writes them."""

_OLMO_TAG = ("<function_calls>", "</function_calls>")
OLMO3 = MessageFormat(
    "olmo3",
    _OLMO_TAG[:1],
    PythonCalls(_OLMO_TAG),
    *_THINK,
    template_marks=("<function_calls>",),
    traces=_OLMO_TAG[1:],
)

_LLAMA_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|eot|>", "<|eom|>", *_CHATML_ENDS)
_PYTHON_START = ("<|python_start|>", "<|python_end|>")
_PYTHON_TAGS = ("<|python_tag|>", _PYTHON_START[0])
LLAMA3 = MessageFormat(
    "llama3",
    _PYTHON_TAGS,
    MessageCalls(_PYTHON_TAGS, _PYTHON_START[1], _LLAMA_ENDS),
    end_tokens=_LLAMA_ENDS,
    whole_message_call="{",
    template_marks=(r"<\|(?:start_header_id|header_start)\|>", '"parameters": '),
)
"""Llama 3.1 to 4: a message that is JSON with name and parameters, or several parted by semicolons."""

PYTHONIC = MessageFormat(
    "pythonic",
    _PYTHON_START[:1],
    PythonCalls(_PYTHON_START, _LLAMA_ENDS, is_optional=True),
    end_tokens=_LLAMA_ENDS,
    whole_message_call="[",
    template_marks=(r"\[func_name1\(",),
)
"""Llama 4, and finetunes of Llama 3 and Qwen: a message that is a list of calls, or of JSON objects."""

MISTRAL = MessageFormat(
    "mistral",
    (TOOL_CALLS,),
    mistral_calls,
    *("[THINK]", "[/THINK]"),
    end_tokens=("</s>", "<|im_end|>", "<|endoftext|>"),
    template_marks=(re.escape(TOOL_CALLS),),
    traces=("[ARGS]",),
)

_GRANITE_TAG = ("<|tool_call|>", "<|/tool_call|>")
GRANITE = MessageFormat(
    "granite",
    _GRANITE_TAG[:1],
    JsonCalls(_GRANITE_TAG[:1], _GRANITE_TAG[1], needs_closing=False),
    *_THINK,
    end_tokens=("<|end_of_text|>", "<|end|>", "<|endoftext|>"),
    template_marks=(r"<\|tool_call\|>|<\|/tool\|>",),
    traces=_GRANITE_TAG[1:],
)
"""Granite 3 and Phi-4-mini: a list of objects after a special token."""

HUNYUAN = MessageFormat(
    "hunyuan", LIST_TAG[:1], hunyuan_calls, *_THINK, template_marks=LIST_TAG[:1], traces=LIST_TAG[1:]
)
"""Hunyuan and Apriel: a list of objects, or of names with JSON, between tags."""

_TOOLCALL = ("<TOOLCALL>", "</TOOLCALL>")
NEMOTRON = MessageFormat(
    "nemotron",
    _TOOLCALL[:1],
    JsonCalls(_TOOLCALL[:1], _TOOLCALL[1]),
    *_THINK,
    template_marks=_TOOLCALL[:1],
    traces=_TOOLCALL[1:],
)
"""Nemotron 1 and 2: a list of objects between tags."""

FUNCTOOLS = MessageFormat(
    "functools",
    ("functools[",),
    JsonCalls(("functools",), needs_closing=False),
    template_marks=(r"functools\[",),
)
"""Phi-4-mini as vLLM asks it, and Firefunction: a list of objects after a word."""

_GIGACHAT = ("<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>")
GIGACHAT = MessageFormat(
    "gigachat",
    _GIGACHAT,
    JsonCalls(_GIGACHAT, "<|message_sep|>", needs_closing=False),
    end_tokens=("<|message_sep|>", "</s>"),
    template_marks=(r"<\|function_call\|>|function call<\|role_sep\|>",),
)
"""GigaChat 3: an object."""

_ACTION = ("<|START_ACTION|>", "<|END_ACTION|>")
COHERE = MessageFormat(
    "cohere",
    _ACTION[:1],
    JsonCalls(_ACTION[:1], _ACTION[1], call_of=cohere_call),
    *("<|START_THINKING|>", "<|END_THINKING|>"),
    end_tokens=("<|END_OF_TURN_TOKEN|>",),
    wrappers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    template_marks=(re.escape(_ACTION[0]),),
    traces=_ACTION[1:],
)
"""Command R7B and A: a list of objects with tool_name and parameters, answers between tags of their own."""

_COMMAND_R = tuple(f"Action:{space}```json" for space in ("\n", " ", ""))
COMMAND_R = MessageFormat(
    "command_r",
    _COMMAND_R,
    JsonCalls(_COMMAND_R, "```", call_of=cohere_call),
    template_marks=(r"Action:\s*```json",),
)

_TOOLS = ("<|tools_prefix|>", "<|tools_suffix|>")
APERTUS = MessageFormat(
    "apertus",
    _TOOLS[:1],
    JsonCalls(_TOOLS[:1], _TOOLS[1], call_of=apertus_call),
    *("<|inner_prefix|>", "<|inner_suffix|>"),
    end_tokens=("<|assistant_end|>",),
    template_marks=(re.escape(_TOOLS[0]),),
    traces=_TOOLS[1:],
)

GEMMA4 = MessageFormat(
    "gemma4",
    (GEMMA_TAG,),
    gemma_calls,
    *("<|channel>thought", "<channel|>"),
    end_tokens=("<turn|>", "<|tool_response>", "<eos>"),
    template_marks=(re.escape(GEMMA_TAG),),
    traces=("<tool_call|>",),
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


BY_MARKS = (
    *(GPT_OSS, DEEPSEEK, DEEPSEEK_V32, KIMI_K2, LFM2, SEED_OSS, MINIMAX_M2, GEMMA4, COHERE, APERTUS, GRANITE),
    *(
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
    ),
    *(QWEN3, HERMES),
)
"""The first whose marks a template has applies."""
FORMATS = {name: next(format for format in BY_MARKS if format.name == name) for name in NAMES}
