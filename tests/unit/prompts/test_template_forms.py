"""Calls reach each template in the form that it takes: as an object or as text, beside no content."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mindbatch.prompts.chat import ChatTemplates
from mindbatch.prompts.messages import checked_conversation
from shared_children import shared_chat_processes

_EACH = "{% for m in messages %}[{{ m.role }}]"


def _template(
    arguments: str = "{{ f.arguments | tojson }}",
    content: str = "{% if m.content %}{{ m.content }}{% endif %}",
    head: str = "",
) -> str:
    calls = "{% for c in m.tool_calls or [] %}{% set f = c.function %}<{{ f.name }} "
    return head + _EACH + content + calls + arguments + ">{% endfor %}{% endfor %}"


TEMPLATES = {
    "tojson": _template(),
    "items": _template("{% for k, v in f.arguments.items() %}{{ k }}={{ v }}{% endfor %}"),
    "items filter": _template("{% for k, v in f.arguments | items %}{{ k }}={{ v }}{% endfor %}"),
    "either": _template(
        "{% if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}{% endif %}"
    ),
    "null is written": _template(content="{% if m.content is defined %}{{ m.content }}{% endif %}"),
    "null fails": _template(content="{% if m.content is defined %}{{ m.content + '.' }}{% endif %}"),
    "tools are needed": _template(
        head="{% for t in tools %}{{ t.function }}{% endfor %}{{ tools[0].function.name }}"
    ),
    "no calls": _EACH + "{{ m.content }}{% endfor %}",
}
"""Of the forms that published templates have; all take objects, and messages that lack a content."""
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
ARGUMENTS: dict[str, Any] = {"city": 'Par"is 巴黎', "n": None, "deep": [1.5, {"a": True}]}
ABSENT = object()


@pytest.fixture(autouse=True, scope="module")
def _children_are_shared() -> Iterator[None]:
    with shared_chat_processes("mindbatch.prompts.chat"):
        yield


def conversation(arguments: Any, content: Any = ABSENT, **members: Any) -> list[dict[str, Any]]:
    call = {"id": "callcall1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    asked = {"role": "assistant", "tool_calls": [call], **members}
    if content is not ABSENT:
        asked["content"] = content
    answer = {"role": "tool", "tool_call_id": "callcall1", "content": "17"}
    return [{"role": "user", "content": "hi"}, asked, answer]


def ours(template: str, messages: list[dict[str, Any]]) -> str:
    chat = ChatTemplates({"default": template})
    fitted = chat.adapted(checked_conversation(messages), has_tools=True)
    try:
        return chat.render(fitted, variables={"tools": [TOOL]})
    finally:
        chat.close()


def theirs(template: str, messages: list[dict[str, Any]]) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, _ = render_jinja_template(
        [messages], tools=[TOOL], chat_template=template, add_generation_prompt=True
    )
    return str(texts[0])


GIVEN = {
    "as text": (json.dumps(ARGUMENTS, ensure_ascii=False), ARGUMENTS),
    "as text with escapes": (json.dumps(ARGUMENTS), ARGUMENTS),
    "as an object": (ARGUMENTS, ARGUMENTS),
    "empty": ("", {}),
    "null as text": ("null", {}),
    "null": (None, {}),
    "none": ("{}", {}),
}


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_call_is_written_as_transformers_writes_it_with_an_object(template: str) -> None:
    for arguments, expected in GIVEN.values():
        for content in ("", "Let me see"):
            assert ours(template, conversation(arguments, content)) == theirs(
                template, conversation(expected, content)
            )


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_no_content_is_absent_for_the_template(template: str) -> None:
    expected = theirs(template, conversation(ARGUMENTS))
    assert "None" not in expected.replace("=None", "")
    text = json.dumps(ARGUMENTS)
    assert ours(template, conversation(text)) == expected
    assert ours(template, conversation(text, None)) == expected
    assert ours(template, conversation(text, None, refusal=None, name=None, function_call=None)) == expected


NEEDS_TEXT = {
    "added to a text": _template("{{ '```' + f.arguments + '```' }}"),
    "written as it is": _template("{{ f.arguments }}"),
}


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("template", NEEDS_TEXT.values(), ids=NEEDS_TEXT)
def test_a_template_that_wants_text_gets_what_was_sent_or_the_json_of_an_object(template: str) -> None:
    for sent in ('{"city":  "\\u5df4"}', '{"n": 1.0}'):
        assert ours(template, conversation(sent)) == theirs(template, conversation(sent))
    expected = theirs(template, conversation(json.dumps(ARGUMENTS, ensure_ascii=False)))
    assert ours(template, conversation(ARGUMENTS)) == expected
    for sent in ("", "null", None):
        assert ours(template, conversation(sent)) == theirs(template, conversation("{}"))


_DISTILLED = (
    "{% for m in messages %}{% if m.role == 'assistant' and m['content'] is none %}"
    "{% for c in m.tool_calls %}{{ '<' + c.function.name + c.function.arguments + '>' }}{% endfor %}"
    "{% elif m.role == 'assistant' %}{{ m['content'].split('</think>')[-1] }}"
    "{% else %}{{ '[' + m['content'] + ']' }}{% endif %}{% endfor %}"
)
"""Calls are written beside a null only, as by DeepSeek R1's distillates."""
_TESTED = _template(content="{% if '</think>' in m.content %}x{% endif %}{{ m.content }}")
"""Fails with an absent content and with null, as Qwen3's do."""


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("content", [ABSENT, None], ids=["absent", "null"])
def test_where_absent_fails_it_is_null_or_empty_whichever_shows_the_call(content: object) -> None:
    expected = theirs(_DISTILLED, conversation('{"a": 1}', None))
    assert '<f{"a": 1}>' in expected
    assert ours(_DISTILLED, conversation('{"a": 1}', content)) == expected
    strict = _TESTED.replace("m.content", "m['content']").replace("{{ m", "{{ '' + m")
    assert ours(strict, conversation('{"a": 1}', content)) == theirs(strict, conversation({"a": 1}, ""))


def test_calls_in_reasoning_and_without_a_function_around_them() -> None:
    template = _template(content="{{ m.reasoning_content }}")
    assert ours(template, conversation("{}", reasoning_content="so")) == "[user][assistant]so<f {}>[tool]"
    bare = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.arguments.a }}{% endfor %}{% endfor %}"
    )
    message = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"a": "x"}'}]}
    assert ours(bare, [{"role": "user", "content": "hi"}, message]) == "x"
    only = "{% for m in messages %}{{ m.role }}{{ m.content is defined }} {% endfor %}"
    reasoned = {"role": "assistant", "reasoning_content": "so"}
    assert ours(only, [{"role": "user", "content": "hi"}, reasoned]) == "userTrue assistantFalse "


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_a_template_finds_reasoning_by_the_name_that_it_reads(name: str) -> None:
    template = _template("", content="{{ m.reasoning_content }}|{{ m.thinking }}")
    expected = "[user]|[assistant]so|so<f >[tool]|"
    assert ours(template, conversation({}, **{name: "so"})) == expected
