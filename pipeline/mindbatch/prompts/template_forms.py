"""Adapts messages to the form that a chat template reads, found once by rendering small conversations.

Templates differ in three ways: whether a content may be a list of parts; whether the arguments of a call are
an object, as for most, or the JSON text of OpenAI's protocol, as for the distillates of DeepSeek R1; and
whether a missing content is absent, null or an empty text.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindbatch.io.errors import PromptError
from mindbatch.prompts.messages import Message
from mindbatch.prompts.tool_calls import with_arguments

Render = Callable[[str, Sequence[Message], dict[str, Any]], str]
"""Renders (template, messages, variables) to a text. Raises PromptError."""

_PROBE = "mindbatch probes for parts"
_AS_LIST = re.compile(rf"""["']text["']\s*:\s*["']{_PROBE}""")
"""Matches a part written as a value by a template that expects a text."""
_NAME, _ARGUMENTS = "mindbatch_call", {"mindbatch_key": "mindbatch_value"}
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "-", "parameters": {"type": "object", "properties": {}}},
}
_AS_PYTHON, _AS_JSON = str(_ARGUMENTS), json.dumps(_ARGUMENTS)
_IS_NULL = re.compile(r"\b(?:None|null)\b")
_ABSENT: tuple[str, ...] = ()
_NO_CONTENT: tuple[Any, ...] = (_ABSENT, None, "")
"""Values of a missing content, the preferred one first."""


@dataclass(frozen=True)
class CallForm:
    """The form of messages with calls: whether arguments are JSON text, and the value of a missing content or
    `_ABSENT`."""

    arguments_as_text: bool
    no_content: Any

    def adapted(self, message: Message) -> Message:
        if calls := message.get("tool_calls"):
            calls = [with_arguments(call, as_text=self.arguments_as_text) for call in calls]
            message = {**message, "tool_calls": calls}
        if "content" in message or self.no_content is _ABSENT:
            return message
        return {**message, "content": self.no_content}


class TemplateForms:
    """Finds and caches the forms of templates by their text."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._supports_parts: dict[str, bool] = {}
        self._call_forms: dict[str, CallForm] = {}

    def adapted(self, template: str, messages: Sequence[Message]) -> list[Message]:
        """Returns the messages in the form that the template reads."""
        if any(isinstance(message.get("content"), list) for message in messages):
            messages = messages if self._reads_parts(template) else [*map(_with_joined_parts, messages)]
        if any("tool_calls" in message or "content" not in message for message in messages):
            form = self._call_form(template)
            messages = [form.adapted(message) for message in messages]
        return [*messages]

    def _reads_parts(self, template: str) -> bool:
        """True if the template reads a list of parts as content."""
        if template not in self._supports_parts:
            message = {"role": "user", "content": [{"type": "text", "text": _PROBE}]}
            text = self._text(template, [message], None)
            self._supports_parts[template] = _PROBE in text and not _AS_LIST.search(text)
        return self._supports_parts[template]

    def _call_form(self, template: str) -> CallForm:
        if template not in self._call_forms:
            forms = [CallForm(*form) for form in itertools.product((False, True), _NO_CONTENT)]
            texts: dict[CallForm, str] = {}
            for tools in ([_TOOL], None):  # some fail without tools, others with an answer of a tool
                texts = {form: self._text(template, _conversation(form, tools), tools) for form in forms}
                if any(map(_shows_call, texts.values())):
                    break
            self._call_forms[template] = _best(texts)
        return self._call_forms[template]

    def _text(self, template: str, messages: Sequence[Message], tools: list[Any] | None) -> str:
        """Renders the messages; returns an empty text if the template fails."""
        try:
            return self._render(template, messages, {"add_generation_prompt": True, "tools": tools})
        except PromptError:
            return ""


def _conversation(form: CallForm, tools: object) -> list[Message]:
    call = {"id": "mindbatch", "type": "function", "function": {"name": _NAME, "arguments": _ARGUMENTS}}
    messages = [{"role": "user", "content": "-"}, form.adapted({"role": "assistant", "tool_calls": [call]})]
    answer = {"role": "tool", "tool_call_id": call["id"], "name": _NAME, "content": "-"}
    return [*messages, answer] if tools else messages


def _shows_call(text: str) -> bool:
    """True if the text has the call, and not with its arguments written as a Python dict."""
    return _NAME in text and all(key in text for key in _ARGUMENTS) and _AS_PYTHON not in text


def _best(texts: Mapping[CallForm, str]) -> CallForm:
    """Returns the first form with which the template writes the call, or else does not fail, and no null.

    Arguments as objects are preferred, unless the template writes only arguments as text correctly."""
    as_text = not any(_shows_call(text) for form, text in texts.items() if not form.arguments_as_text)
    as_text = as_text and any(_AS_JSON in text for form, text in texts.items() if form.arguments_as_text)
    rendered = {form: text for form, text in texts.items() if form.arguments_as_text == as_text and text}
    empty = rendered.get(CallForm(as_text, ""), "")
    rendered = {form: text for form, text in rendered.items() if len(_nulls(text)) <= len(_nulls(empty))}
    with_call = (form for form, text in rendered.items() if _shows_call(text))
    return next(with_call, next(iter(rendered), CallForm(as_text, _ABSENT)))


def _nulls(text: str) -> list[str]:
    return _IS_NULL.findall(text)


def _with_joined_parts(message: Message) -> Message:
    """Joins the parts of a message to one text without separators."""
    if not isinstance(content := message.get("content"), list):
        return message
    return {**message, "content": "".join(part["text"] for part in content)}
