"""What templates write parses back: content, reasoning and calls with typed arguments, however it is cut."""

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from message_examples import ANY_TOOLS, parsed, parsed_cut
from written_messages import TEMPLATES, written

from mindbatch.message_formats.call_text import ParsedMessage
from mindbatch.message_formats.formats import FORMATS

NO_REASONING = (
    *("hermes", "llama3", "mistral list", "pythonic", "functools", "command_r", "gigachat", "glm"),
)
NO_CONTENT_BESIDE = ("llama3", "pythonic", "glm")
VALUES_AS_TEXT = ("qwen3_coder", "glm4", "seed_oss", "minimax_m2")
KEYS_ARE_NAMES = (*VALUES_AS_TEXT, "deepseek_v32", "lfm2", "olmo3", "pythonic", "gemma4")

_identifiers = st.from_regex(r"[a-zA-Z_][\w.-]{0,12}", fullmatch=True)
# Any characters, and what could be taken for the formats' own.
_free_texts = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    | st.sampled_from(
        ["<", "<thin", "[TOOL", "<|", "</", '{"name": ', "\n", " ", "```", "<tool_call", "é", ";"]
    ),
    max_size=6,
).map("".join)
_tags = st.sampled_from(["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|call|>", "<｜tool▁calls▁begin｜>"])
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _free_texts
    | _tags,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_free_texts, inner, max_size=3),
    max_leaves=6,
)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return text in ("True", "False", "None")
    return True


def _arguments(name: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(_identifiers if name in KEYS_ARE_NAMES else _free_texts, _values, max_size=3)


def _has_texts_like_json(arguments: dict[str, Any]) -> bool:
    return any(isinstance(value, str) and _is_json(value.strip()) for value in arguments.values())


def _tools(calls: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Tools whose schemas say the types of what the calls have."""
    properties: dict[str, dict[str, Any]] = {}
    for name, arguments in calls:
        types = {key: {"type": _json_type(value)} for key, value in arguments.items()}
        properties[name] = properties.get(name, {}) | types
    return [
        {"type": "function", "function": {"name": name, "parameters": {"properties": types}}}
        for name, types in properties.items()
    ]


def _json_type(value: Any) -> str:
    types = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return types.get(type(value), "null")


def _plain(text: str) -> str:
    """A text without whitespace at its ends, which templates strip, nor what begins a call by itself."""
    return text.strip().lstrip("{[").strip()


def _plain_texts(name: str) -> st.SearchStrategy[str]:
    """Texts in which no marker of the format has come about from parts: a parser would take it for one."""
    format = FORMATS[name.split()[0]]
    tags = (format.reasoning_opening, format.reasoning_closing)
    markers = [*filter(None, (*format.calls, *format.traces, *format.wrappers, *format.end_tokens, *tags))]
    return _free_texts.map(_plain).filter(lambda text: not any(marker in text for marker in markers))


@pytest.mark.parametrize(
    ("name", "typed"), [(name, True) for name in TEMPLATES] + [(name, False) for name in VALUES_AS_TEXT]
)
@given(data=st.data())
def test_a_message_parses_back_to_what_was_written(name: str, typed: bool, data: st.DataObject) -> None:
    calls = data.draw(
        st.lists(st.tuples(_identifiers, _arguments(name)), max_size=3, unique_by=lambda call: call[0])
    )
    assume(typed or name not in VALUES_AS_TEXT or not any(_has_texts_like_json(call[1]) for call in calls))
    content = "" if calls and name in NO_CONTENT_BESIDE else data.draw(_plain_texts(name))
    reasoning = "" if name in NO_REASONING else data.draw(_plain_texts(name))
    text = written(name, content=content, reasoning=reasoning, calls=calls)
    format, tools = name.split()[0], _tools(calls) or ANY_TOOLS if typed else ANY_TOOLS
    message = parsed(format, text, tools=tools)
    assert message == ParsedMessage(content or None, reasoning or None, message.tool_calls, ())
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls
    assert parsed_cut(format, text, range(len(text)), tools=tools) == message
