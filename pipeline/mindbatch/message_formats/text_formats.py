"""Defines the formats of model families with arguments between tags or in Python's syntax."""

import re

from mindbatch.message_formats.markers import (
    CHATML_ENDS,
    LLAMA_ENDS,
    PYTHON_START,
    THINK,
    TOOL_CALL,
    TOOL_CALL_END,
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

_FUNCTION = ("<function=", ">", "</function>")
QWEN3_CODER = MessageFormat(
    "qwen3_coder",
    (TOOL_CALL,),
    TaggedCalls(
        (TOOL_CALL, TOOL_CALL_END),
        _FUNCTION,
        ("<parameter=", "</parameter>"),
        {">": BY_SCHEMA},
        padding="\n",
        words=PYTHON_WORDS,
    ),
    *THINK,
    template_marks=("<tool_call>", "<function="),
    traces=("<function=", "<parameter=", "</parameter>", "</function>", TOOL_CALL_END),
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
    *THINK,
    template_marks=(_MINIMAX_CALL,),
    traces=("<invoke name=", "</invoke>", "</minimax:tool_call>"),
)

DEEPSEEK_V32 = MessageFormat(
    "deepseek_v32",
    DSML_TAGS,
    dsml_calls,
    *THINK,
    template_marks=("｜DSML｜",),
    traces=("<｜DSML｜", "</｜DSML｜"),
)

GLM4 = MessageFormat(
    "glm4",
    (TOOL_CALL,),
    glm_calls,
    *THINK,
    template_marks=("<tool_call>", "<arg_key>"),
    traces=("<arg_key>", "<arg_value>", TOOL_CALL_END),
)
"""GLM-4.5 to 5: the name, then pairs of <arg_key> and <arg_value>."""

_LFM_TAG = ("<|tool_call_start|>", "<|tool_call_end|>")
LFM2 = MessageFormat(
    "lfm2",
    _LFM_TAG[:1],
    PythonCalls(_LFM_TAG),
    *THINK,
    end_tokens=CHATML_ENDS,
    template_marks=(r"<\|tool_(?:call|list)_start\|>|List of tools: ",),
    traces=_LFM_TAG[1:],
)
"""LFM2 and 2.5: a list of calls in Python's syntax."""

_OLMO_TAG = ("<function_calls>", "</function_calls>")
OLMO3 = MessageFormat(
    "olmo3",
    _OLMO_TAG[:1],
    PythonCalls(_OLMO_TAG),
    *THINK,
    template_marks=("<function_calls>",),
    traces=_OLMO_TAG[1:],
)

PYTHONIC = MessageFormat(
    "pythonic",
    PYTHON_START[:1],
    PythonCalls(PYTHON_START, LLAMA_ENDS, is_optional=True),
    end_tokens=LLAMA_ENDS,
    whole_message_call="[",
    template_marks=(r"\[func_name1\(",),
)
"""Llama 4, and finetunes of Llama 3 and Qwen: a message that is a list of calls, or of JSON objects."""

GEMMA4 = MessageFormat(
    "gemma4",
    (GEMMA_TAG,),
    gemma_calls,
    *("<|channel>thought", "<channel|>"),
    end_tokens=("<turn|>", "<|tool_response>", "<eos>"),
    template_marks=(re.escape(GEMMA_TAG),),
    traces=("<tool_call|>",),
)
