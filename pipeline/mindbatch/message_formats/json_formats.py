"""Defines the formats of model families with JSON calls: markers, reasoning and marks of templates."""

import re

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
from mindbatch.message_formats.markers import (
    LLAMA_ENDS,
    PYTHON_START,
    THINK,
    TOOL_CALL,
    TOOL_CALL_END,
)
from mindbatch.message_formats.parser import MessageFormat

_JSON_CALL = r"""<tool_call>(?:\\n|\s)*\{\\?["']"""
"""Matches a JSON call in a template, with newlines and quotes escaped or not."""

_TAGGED_JSON = JsonCalls((TOOL_CALL,), TOOL_CALL_END)
HERMES = MessageFormat(
    "hermes", (TOOL_CALL,), _TAGGED_JSON, template_marks=(_JSON_CALL,), traces=(TOOL_CALL_END,)
)
"""Hermes, Granite 4, EXAONE 4, ERNIE 4.5, SmolLM 3: an object with name and arguments between tags."""

QWEN3 = MessageFormat(
    "qwen3",
    (TOOL_CALL,),
    _TAGGED_JSON,
    *THINK,
    template_marks=("<think>", _JSON_CALL),
    traces=(TOOL_CALL_END,),
)

DEEPSEEK = MessageFormat(
    "deepseek",
    DEEPSEEK_MARKERS,
    deepseek_calls,
    *THINK,
    template_marks=("<｜tool▁sep｜>",),
    traces=("<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
)
"""DeepSeek R1, V3 and V3.1: a list of calls between special words."""

KIMI_K2 = MessageFormat(
    "kimi_k2",
    KIMI_MARKERS,
    kimi_calls,
    *THINK,
    end_tokens=("<|im_end|>", "[EOS]"),
    template_marks=(re.escape(KIMI_MARKERS[1]),),
    traces=("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
)

_PYTHON_TAGS = ("<|python_tag|>", PYTHON_START[0])
LLAMA3 = MessageFormat(
    "llama3",
    _PYTHON_TAGS,
    MessageCalls(_PYTHON_TAGS, PYTHON_START[1], LLAMA_ENDS),
    end_tokens=LLAMA_ENDS,
    whole_message_call="{",
    template_marks=(r"<\|(?:start_header_id|header_start)\|>", '"parameters": '),
)
"""Llama 3.1 to 4: a message that is JSON with name and parameters, or several divided by semicolons."""

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
    *THINK,
    end_tokens=("<|end_of_text|>", "<|end|>", "<|endoftext|>"),
    template_marks=(r"<\|tool_call\|>|<\|/tool\|>",),
    traces=_GRANITE_TAG[1:],
)
"""Granite 3 and Phi-4-mini: a list of objects after a special token."""

HUNYUAN = MessageFormat(
    "hunyuan", LIST_TAG[:1], hunyuan_calls, *THINK, template_marks=LIST_TAG[:1], traces=LIST_TAG[1:]
)
"""Hunyuan and Apriel: a list of objects, or of names with JSON, between tags."""

_TOOLCALL = ("<TOOLCALL>", "</TOOLCALL>")
NEMOTRON = MessageFormat(
    "nemotron",
    _TOOLCALL[:1],
    JsonCalls(_TOOLCALL[:1], _TOOLCALL[1]),
    *THINK,
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
"""Phi-4-mini with vLLM's prompt, and Firefunction: a list of objects after a word."""

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
"""Command R7B and A: a list of objects with tool_name and parameters, answers in tags of their own."""

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
