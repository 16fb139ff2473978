"""Messages as the models of each format write them, and parsing them whole or cut into pushes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mindbatch.message_formats.call_text import MessageSegment, ParsedMessage, ToolCall
from mindbatch.message_formats.formats import FORMATS


@dataclass(frozen=True)
class Example:
    """A generated text and the message in it. in_reasoning: the prompt ends with the opening tag."""

    format: str
    text: str
    content: str | None = None
    reasoning: str | None = None
    calls: tuple[tuple[str, str], ...] = ()
    in_reasoning: bool = False

    @property
    def message(self) -> ParsedMessage:
        calls = tuple(ToolCall(name, arguments) for name, arguments in self.calls)
        return ParsedMessage(self.content, self.reasoning, calls, ())


ANY_TOOLS: list[Any] = [{}]


def parsed(
    name: str, text: str, *, in_reasoning: bool = False, tools: Sequence[Any] = ANY_TOOLS
) -> ParsedMessage:
    return ParsedMessage.from_segments(pieces_of(name, [text], in_reasoning=in_reasoning, tools=tools))


def pieces_of(
    name: str, parts: Iterable[str], *, in_reasoning: bool = False, tools: Sequence[Any] = ANY_TOOLS
) -> list[MessageSegment]:
    """The pieces of a text that comes in parts."""
    parser = FORMATS[name].parser(in_reasoning=in_reasoning, tools=tools)
    return [segment for part in parts for segment in parser.push(part)] + parser.finish()


def parsed_cut(
    name: str,
    text: str,
    cuts: Sequence[int],
    *,
    in_reasoning: bool = False,
    tools: Sequence[Any] = ANY_TOOLS,
) -> ParsedMessage:
    """The message of a text that is pushed in parts, from each cut to the next."""
    ends = [0, *sorted(cuts), len(text)]
    parts = (text[start:end] for start, end in pairwise(ends))
    return ParsedMessage.from_segments(pieces_of(name, parts, in_reasoning=in_reasoning, tools=tools))


EXAMPLES = [
    Example("hermes", "Hello there.\n", content="Hello there.\n"),
    Example(
        "hermes",
        '<tool_call>\n{"arguments": {"symbol": "TSLA"}, "name": "get_stock_price"}\n</tool_call>\n',
        calls=(("get_stock_price", '{"symbol": "TSLA"}'),),
    ),
    Example(
        "qwen3",
        "<think>\nThe user wants two cities.\n\nSo two calls.\n</think>\n\nLooking it up.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Łódź", "days": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Graz"}}\n</tool_call>',
        content="Looking it up.",
        reasoning="The user wants two cities.\n\nSo two calls.",
        calls=(("get_weather", '{"city": "Łódź", "days": 2}'), ("get_weather", '{"city": "Graz"}')),
    ),
    Example(
        "qwen3",
        '<tool_call>\n{"name": "write", "arguments": '
        '{"text": "ends with </tool_call> \\" \\\\"}}\n</tool_call>',
        calls=(("write", '{"text": "ends with </tool_call> \\" \\\\"}'),),
    ),
    Example("qwen3", "<think>\n\n</think>\n\nParis.", content="Paris."),
    Example(
        "qwen3_coder",
        "I need the file.\n</think>\n\nReading it.\n\n<tool_call>\n<function=read_file>\n<parameter=path>\n"
        "/etc/hosts\n</parameter>\n<parameter=lines>\n[1, 20]\n</parameter>\n<parameter=follow>\nTrue\n"
        "</parameter>\n<parameter=script>\n\n  if a < b:\n    go()\n\n</parameter>\n</function>\n"
        "</tool_call>",
        content="Reading it.",
        reasoning="I need the file.",
        calls=(
            (
                "read_file",
                '{"path": "/etc/hosts", "lines": [1, 20], "follow": true, '
                '"script": "\\n  if a < b:\\n    go()\\n"}',
            ),
        ),
        in_reasoning=True,
    ),
    Example(
        "qwen3_coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>\n", calls=(("now", "{}"),)
    ),
    Example("deepseek", "<think>\nEasy.\n</think>\n\n4", content="4", reasoning="Easy.", in_reasoning=True),
    Example(
        "deepseek",
        "Two are needed.\n</think>\n\nOne moment.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
        'function<｜tool▁sep｜>get_weather\n```json\n{"city": "Graz"}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>function"
        "<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        content="One moment.",
        reasoning="Two are needed.",
        calls=(("get_weather", '{"city": "Graz"}'), ("get_time", "{}")),
        in_reasoning=True,
    ),
    Example(
        "deepseek",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{"a": [1.50]}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        calls=(("function", '{"a": [1.50]}'), ("get_time", "{}")),
    ),
    Example(
        "glm4",
        "\n<think>Ask for both.</think>\nAsking.\n<tool_call>search\n<arg_key>query</arg_key>\n"
        "<arg_value>tides in Brest</arg_value>\n<arg_key>limit</arg_key>\n<arg_value>5</arg_value>\n"
        "</tool_call>\n<tool_call>today\n</tool_call>",
        content="Asking.",
        reasoning="Ask for both.",
        calls=(("search", '{"query": "tides in Brest", "limit": 5}'), ("today", "{}")),
    ),
    Example(
        "glm4",
        "<think></think><tool_call>set<arg_key>on</arg_key><arg_value>true</arg_value></tool_call>",
        calls=(("set", '{"on": true}'),),
    ),
    Example(
        "llama3",
        '{"name": "get_weather", "parameters": {"city": "Graz"}}<|eot_id|>',
        calls=(("get_weather", '{"city": "Graz"}'),),
    ),
    Example(
        "llama3",
        '<|python_tag|>{"type": "function", "name": "a", "parameters": {}}; {"name": "b", "parameters": '
        '{"x": ";"}}<|eom_id|>',
        calls=(("a", "{}"), ("b", '{"x": ";"}')),
    ),
    Example(
        "llama3",
        '<|python_start|>{"name": "a", "parameters": {}}{"name": "b", "parameters": {}}<|python_end|><|eom|>',
        calls=(("a", "{}"), ("b", "{}")),
    ),
    Example("llama3", "Braces {like these} are text.<|eot_id|>", content="Braces {like these} are text."),
    Example(
        "mistral",
        '[TOOL_CALLS] [{"name": "a", "arguments": {"x": "]"}, "id": "abcdefghi"}, '
        '{"name": "b", "arguments": {}}]</s>',
        calls=(("a", '{"x": "]"}'), ("b", "{}")),
    ),
    Example(
        "mistral",
        "[THINK]Two calls.[/THINK]On it.[TOOL_CALLS]a[ARGS]"
        '{"x": "[TOOL_CALLS]"}[TOOL_CALLS]b[CALL_ID]abcdefghi[ARGS]{}</s>',
        content="On it.",
        reasoning="Two calls.",
        calls=(("a", '{"x": "[TOOL_CALLS]"}'), ("b", "{}")),
    ),
    Example("mistral", "<s>old</s> new</s>", content="<s>old</s> new"),
    Example(
        "gpt_oss",
        "<|channel|>analysis<|message|>2 + 2.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>4.<|return|>",
        content="4.",
        reasoning="2 + 2.",
    ),
    Example(
        "gpt_oss",
        "<|channel|>analysis<|message|>Files.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>Plan:\n1. write<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.write <|constrain|>json<|message|>"
        '{"path": "a.html"}<|call|>',
        content="Plan:\n1. write",
        reasoning="Files.\nTwo.",
        calls=(("write", '{"path": "a.html"}'),),
    ),
    Example(
        "gpt_oss",
        " to=functions.get_time<|channel|>commentary json<|message|>{}",
        calls=(("get_time", "{}"),),
    ),
]
