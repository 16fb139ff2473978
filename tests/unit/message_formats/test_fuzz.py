"""No text makes a parser raise, lose characters, or depend on cuts; what templates write parses back."""

import json
from typing import Any

import jinja2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from message_examples import ANY_TOOLS, parsed, parsed_cut

from mindbatch.message_formats.call_text import ParsedMessage
from mindbatch.message_formats.formats import FORMATS

# By format: what it may drop from a text that has no valid call in it.
DROPPED = {
    "hermes": (),
    "qwen3": ("<think>", "</think>"),
    "qwen3_coder": ("<think>", "</think>"),
    "glm4": ("<think>", "</think>"),
    "deepseek": ("<think>", "</think>"),
    "llama3": ("<|eot_id|>", "<|eom_id|>", "<|im_end|>"),
    "mistral": ("[THINK]", "[/THINK]", "</s>", "<|im_end|>"),
    "kimi_k2": ("<think>", "</think>", "<|im_end|>", "[EOS]"),
    "lfm2": ("<think>", "</think>", "<|im_end|>"),
    "granite": ("<think>", "</think>", "<|end_of_text|>", "<|end|>"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    **dict.fromkeys(("deepseek_v32", "minimax_m2", "hunyuan", "olmo3", "nemotron"), ("<think>", "</think>")),
    "cohere": (
        *("<|START_THINKING|>", "<|END_THINKING|>", "<|END_OF_TURN_TOKEN|>"),
        *("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    **dict.fromkeys(("command_r", "functools"), ()),
    "apertus": ("<|inner_prefix|>", "<|inner_suffix|>", "<|assistant_end|>"),
    "gemma4": ("<|channel>thought\n", "<channel|>", "<turn|>", "<|tool_response>", "<eos>"),
    "pythonic": ("<|eot_id|>", "<|eom_id|>", "<|im_end|>"),
    "gigachat": ("<|message_sep|>", "</s>"),
    "gpt_oss": (
        *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"),
        *("assistant", "analysis", "commentary", "final"),
    ),
}
BITS = (
    *("<tool_call>", "</tool_call>", "<function=", "<parameter=", ">", "</parameter>", "</function>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("<|python_tag|>", "<|constrain|>json", " to=functions.f", "<｜tool▁sep｜>", "```json", "```"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    *(
        '{"name": "f", ',
        '"arguments": {}}',
        '"parameters": {}}',
        "{}",
        '{"a": ',
        "[",
        "]",
        "}",
        '"',
        "\\",
        ";",
    ),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.f:0", "<|tool_call_argument_begin|>"),
    *("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_start|>", "<|python_start|>"),
    *("f(", "a=", ")", "'", "(", ",", "None", "<function_calls>", "</function_calls>", "<|tool_call|>"),
    *("<seed:tool_call>", "</seed:tool_call>", "<minimax:tool_call>", "</minimax:tool_call>"),
    *('<invoke name="f">', '<parameter name="a">', "</invoke>", "<tool_calls>", "</tool_calls>"),
    *("<｜DSML｜function_calls>", '<｜DSML｜invoke name="f">', '<｜DSML｜parameter name="a" string="true">'),
    *("</｜DSML｜parameter>", "</｜DSML｜invoke>", "</｜DSML｜function_calls>", "<|START_ACTION|>"),
    *("<|END_ACTION|>", '"tool_name": "f", ', "Action:\n```json", "<|tools_prefix|>", "<|tools_suffix|>"),
    *("<|tool_call>", "call:f{", "a:", '<|"|>', "<tool_call|>", "<TOOLCALL>", "</TOOLCALL>"),
    *("functools[", "<|function_call|>", "function call<|role_sep|>"),
    *("<", "</", "<|", "[", "\n", " ", "\x00", "\ud800", "x"),
)
_texts = (
    st.lists(
        st.sampled_from(BITS)
        | st.sampled_from([*{part: None for parts in DROPPED.values() for part in parts}]),
        max_size=24,
    ).map("".join)
    | st.text()
)
_names = st.sampled_from([*FORMATS])


@given(_names, _texts, st.booleans(), st.data())
def test_any_text_gives_the_same_message_however_it_is_cut(
    name: str, text: str, in_reasoning: bool, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=20))
    message = parsed(name, text, in_reasoning=in_reasoning)
    assert message == parsed_cut(name, text, cuts, in_reasoning=in_reasoning)
    assert message == parsed_cut(name, text, range(len(text)), in_reasoning=in_reasoning)


def _characters(text: str, name: str) -> str:
    """A text without what its format drops, and without whitespace."""
    for part in DROPPED[name]:
        text = text.replace(part, "")
    return "".join(text.split())


@given(_names, _texts, st.booleans())
@example("deepseek", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>", True)
@example("mistral", "[THINK]a</s>b</s>[/THINK]</s>c</s>", False)
def test_no_character_is_lost_but_separators_and_markers(name: str, text: str, with_tools: bool) -> None:
    message = parsed(name, text, tools=ANY_TOOLS if with_tools else ())
    if not message.tool_calls:
        kept = f"{message.reasoning or ''}{message.content or ''}"
        # gpt-oss may come back to reasoning after content.
        assert sorted(_characters(kept, name)) == sorted(_characters(text, name))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "text",
    [
        *("<" * 100_000, "[" * 100_000, "\n" * 100_000, "{" * 100_000, "<think>" + "\n<" * 50_000),
        *("<tool_call>" * 9_000, "[TOOL_CALLS]" * 9_000, "<|channel|>" * 9_000, "<|channel|>x" * 9_000),
        *("<｜tool▁call▁begin｜>" * 5_000, "</s>" * 9_000, "<|eot_id|>" * 9_000, '{"a":' * 20_000),
        '<tool_call>{"name": "' + "\\n" * 50_000,
        "<tool_call>f" + "<arg_key>a</arg_key><arg_value>1</arg_value>" * 3_000,
        '{"name": "f", "parameters": {}};' * 3_000,
    ],
    ids=lambda text: f"{text[:14]!r}",
)
def test_a_long_text_is_read_however_it_is_cut(name: str, text: str) -> None:
    assert parsed_cut(name, text, range(0, len(text), 97)) == parsed(name, text)


# As short as the templates of the models can be put; `reasoning` is never empty, `content` may be.
_HERMES_CALLS = """
{%- for name, arguments in calls %}{% if content or not loop.first %}{{ "\\n" }}{% endif -%}
<tool_call>{{ "\\n" }}{"name": "{{ name }}", "arguments": {{ json(arguments) }}}{{ "\\n" }}</tool_call>
{%- endfor %}"""
_DEEPSEEK_THOUGHT = "{% if reasoning %}<think>{{ reasoning }}</think>{% endif %}{{ content }}"
TEMPLATES = {
    "hermes": "{{ content }}" + _HERMES_CALLS,
    "qwen3": "{% if reasoning %}<think>\n{{ reasoning }}\n</think>\n\n{% endif %}{{ content }}"
    + _HERMES_CALLS,
    "qwen3_coder": """<think>
{{ reasoning }}
</think>

{{ content }}
{%- for name, arguments in calls -%}
{{ "\\n\\n" if loop.first and content else "" if loop.first else "\\n" }}<tool_call>
<function={{ name }}>
{% for key, value in arguments.items() -%}
<parameter={{ key }}>
{{ json(value) if value is mapping or (value is sequence and value is not string) else value | string }}
</parameter>
{% endfor -%}
</function>
</tool_call>
{%- endfor %}""",
    "deepseek v3": _DEEPSEEK_THOUGHT
    + """{% for name, arguments in calls -%}
{{ "<｜tool▁calls▁begin｜>" if loop.first else "\\n" }}<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ name }}
```json
{{ json(arguments) }}
```<｜tool▁call▁end｜>
{%- endfor %}{{ "<｜tool▁calls▁end｜>" if calls }}""",
    "deepseek v3.1": _DEEPSEEK_THOUGHT
    + """{% for name, arguments in calls -%}
{{ "<｜tool▁calls▁begin｜>" if loop.first }}<｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>
{{- json(arguments) }}<｜tool▁call▁end｜>
{%- endfor %}{{ "<｜tool▁calls▁end｜>" if calls }}""",
    "glm4": """
<think>{{ reasoning }}</think>{{ "\\n" + content if content }}
{%- for name, arguments in calls %}
<tool_call>{{ name }}
{% for key, value in arguments.items() -%}
<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else json(value) }}</arg_value>
{% endfor -%}
</tool_call>
{%- endfor %}""",
    "llama3": """{% if not calls %}{{ content }}{% endif %}
{%- for name, arguments in calls %}{{ "; " if not loop.first }}
{{- '{"name": "' + name + '", "parameters": ' + json(arguments) + "}" }}
{%- endfor %}<|eot_id|>""",
    "mistral list": """{{ content }}{% if calls %}[TOOL_CALLS] [
{%- for name, arguments in calls -%}
{"name": "{{ name }}", "arguments": {{ json(arguments) }}, "id": "abcdefghi"}{{ ", " if not loop.last }}
{%- endfor %}]{% endif %}</s>""",
    "mistral": """{% if reasoning %}[THINK]{{ reasoning }}[/THINK]{% endif %}{{ content }}
{%- for name, arguments in calls %}[TOOL_CALLS]{{ name }}[ARGS]{{ json(arguments) }}{% endfor %}</s>""",
    "gpt_oss": """
{%- if reasoning %}<|channel|>analysis<|message|>{{ reasoning }}<|end|><|start|>assistant{% endif %}
{%- if content or not calls %}<|channel|>{{ "commentary" if calls else "final" }}<|message|>{{ content }}
{{- "<|end|><|start|>assistant" if calls else "<|return|>" }}{% endif %}
{%- for name, arguments in calls -%}
{{ "<|start|>assistant" if not loop.first }}<|channel|>commentary to=functions.{{ name }} <|constrain|>json
{{- "<|message|>" + json(arguments) }}<|call|>
{%- endfor %}""",
}
NO_REASONING = ("hermes", "llama3", "mistral list")
VALUES_AS_TEXT = ("qwen3_coder", "glm4")

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
    """Texts among tags may not be JSON themselves: without a schema, nothing tells them from values."""
    if name not in VALUES_AS_TEXT:
        return st.dictionaries(_free_texts, _values, max_size=3)
    values = _values.filter(lambda value: not (isinstance(value, str) and _is_json(value.strip())))
    return st.dictionaries(_identifiers, values, max_size=3)


def _plain(text: str) -> str:
    """A text without whitespace at its ends, which templates strip, nor a brace that begins a message."""
    return text.strip().lstrip("{").strip()


def _written(template: str, **variables: Any) -> str:
    environment = jinja2.Environment()
    return environment.from_string(template).render(
        json=lambda value: json.dumps(value, ensure_ascii=False), **variables
    )


@pytest.mark.parametrize("name", TEMPLATES)
@given(data=st.data())
def test_a_message_parses_back_to_what_was_written(name: str, data: st.DataObject) -> None:
    calls = data.draw(st.lists(st.tuples(_identifiers, _arguments(name)), max_size=3))
    content = "" if calls and name == "llama3" else data.draw(_free_texts.map(_plain))
    reasoning = "" if name in NO_REASONING else data.draw(_free_texts.map(_plain))
    text = _written(TEMPLATES[name], content=content, reasoning=reasoning, calls=calls)
    message = parsed(name.split()[0], text)
    assert message == ParsedMessage(content or None, reasoning or None, message.tool_calls, ())
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls
