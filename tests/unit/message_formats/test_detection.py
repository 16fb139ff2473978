"""A format is found by what a chat template writes, whatever its text looks like."""

from typing import Any

import jinja2
import pytest
from written_messages import TEMPLATES, written

from mindbatch.message_formats.detection import detect

Messages = list[dict[str, Any]]


def _chat(name: str, messages: Messages) -> str:
    """A conversation as a template writes it that takes arguments as objects."""
    text = "<s>"
    for message in messages:
        if message["role"] != "assistant":
            text += f"[{message['role']}]{message['content']}\n"
            continue
        calls = [
            (call["function"]["name"], dict(call["function"]["arguments"].items()))
            for call in message.get("tool_calls", ())
        ]
        text += "[assistant]" + written(name, content=message["content"] or "", reasoning="", calls=calls)
    return text


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_format_is_found_by_what_its_template_writes(name: str) -> None:
    source = "<think>" if name == "qwen3" else ""
    message_format = detect(source, lambda messages, tools: _chat(name, messages))
    assert message_format is not None
    assert message_format.name == name.split()[0]


def _rendered(source: str) -> Any:
    template = jinja2.Environment().from_string(source)

    def render(messages: Messages, tools: Messages) -> str | None:
        try:
            return template.render(messages=messages, tools=tools)
        except (jinja2.TemplateError, TypeError):
            return None

    return render


_HEAD = "{% for m in messages %}[{{ m.role }}]"
_TAIL = "{{ m.content if m.content }}{% endfor %}"
_PIECES = """{% for c in m.tool_calls %}{% set f = c.function %}{{- '<tool_' ~ 'call>' }}{{- '{"name": "' }}
{{- f.name ~ '", "arguments": ' }}{{- f.arguments | tojson }}{{- '}</tool_call>' }}{% endfor %}"""
_AS_TEXT = """{% for c in m.tool_calls %}{% set f = c.function %}{{ '<tool_call>{"name": "' + f.name }}
{{- '", "arguments": ' + f.arguments + "}</tool_call>" }}{% endfor %}"""
_WITHOUT_CONTENT = "{% if m.content is none %}" + _PIECES + "{% endif %}"
_ANSWERED = "{% if messages | length > 2 %}" + _PIECES + "{% else %}{{ 1 + 'x' }}{% endif %}"
_WITHIN = """{% for c in m.tool_calls %}{% set f = c.function %}CALL: {{ '{"name": "' + f.name }}
{{- '", "arguments": ' }}{{- f.arguments | tojson }}{{- "}" }}{% endfor %}"""


@pytest.mark.parametrize("source", [_PIECES, _AS_TEXT, _WITHOUT_CONTENT, _ANSWERED])
def test_templates_differ_in_what_they_take(source: str) -> None:
    whole = _HEAD + source + _TAIL
    message_format = detect(whole, _rendered(whole))
    assert message_format is not None
    assert message_format.name == "hermes"


@pytest.mark.parametrize("source", [_HEAD + _WITHIN + _TAIL, _HEAD + _TAIL, "{{ 1 + 'x' }}", ""])
def test_no_format_is_found_where_no_call_can_be_read(source: str) -> None:
    assert detect(source, _rendered(source)) is None


def test_what_a_template_writes_counts_before_its_text() -> None:
    source = "{#- <tool_call><function=name> -#}" + _HEAD + _PIECES + _TAIL
    message_format, by_text = detect(source, _rendered(source)), detect(source)
    assert message_format is not None
    assert by_text is not None
    assert (message_format.name, by_text.name) == ("hermes", "qwen3_coder")
