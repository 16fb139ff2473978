"""Owns what each chat template takes: found out once, by having it render small conversations.

Templates differ in whether a content may be in parts; whether the arguments of a call are an object, as most
want, or the JSON text of OpenAI's protocol, as those of DeepSeek R1's distillates do; and in what stands for
the content of a message that has none: nothing at all, null or an empty text.
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
"""(template, messages, variables) -> text; raises PromptError."""

_PROBE = "mindbatch probes for parts"
_AS_LIST = re.compile(rf"""["']text["']\s*:\s*["']{_PROBE}""")
"""A part written out as a value, by a template that takes every content for a text."""
_NAME, _ARGUMENTS = "mindbatch_call", {"mindbatch_key": "mindbatch_value"}
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "-", "parameters": {"type": "object", "properties": {}}},
}
_AS_PYTHON, _AS_JSON = str(_ARGUMENTS), json.dumps(_ARGUMENTS)
_IS_NULL = re.compile(r"\b(?:None|null)\b")
_ABSENT: tuple[str, ...] = ()
_NO_CONTENT: tuple[Any, ...] = (_ABSENT, None, "")
"""Contents of a message that has none, the one to be preferred first."""


@dataclass(frozen=True)
class CallForm:
    """Form in which a template takes a message with calls: its arguments, and what is its content if it has
    none, or `_ABSENT`."""

    arguments_as_text: bool
    no_content: Any

    def fitted(self, message: Message) -> Message:
        if calls := message.get("tool_calls"):
            fitted = [with_arguments(call, as_text=self.arguments_as_text) for call in calls]
            message = {**message, "tool_calls": fitted}
        if "content" in message or self.no_content is _ABSENT:
            return message
        return {**message, "content": self.no_content}


class TemplateForms:
    """Knows the forms of templates by their text."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._take_parts: dict[str, bool] = {}
        self._call_forms: dict[str, CallForm] = {}

    def fitted(self, template: str, messages: Sequence[Message]) -> list[Message]:
        """The messages as the template takes them."""
        if any(isinstance(message.get("content"), list) for message in messages):
            messages = messages if self._takes_parts(template) else [*map(_with_joined_parts, messages)]
        if any("tool_calls" in message or "content" not in message for message in messages):
            form = self._call_form(template)
            messages = [form.fitted(message) for message in messages]
        return [*messages]

    def _takes_parts(self, template: str) -> bool:
        """True if the template reads a content in parts."""
        if template not in self._take_parts:
            message = {"role": "user", "content": [{"type": "text", "text": _PROBE}]}
            text = self._text(template, [message], None)
            self._take_parts[template] = _PROBE in text and not _AS_LIST.search(text)
        return self._take_parts[template]

    def _call_form(self, template: str) -> CallForm:
        if template not in self._call_forms:
            forms = [CallForm(*form) for form in itertools.product((False, True), _NO_CONTENT)]
            texts: dict[CallForm, str] = {}
            for tools in ([_TOOL], None):  # some fail without tools, others where a tool has answered
                texts = {form: self._text(template, _conversation(form, tools), tools) for form in forms}
                if any(map(_shows_call, texts.values())):
                    break
            self._call_forms[template] = _best(texts)
        return self._call_forms[template]

    def _text(self, template: str, messages: Sequence[Message], tools: list[Any] | None) -> str:
        """The rendered text, empty where the template fails."""
        try:
            return self._render(template, messages, {"add_generation_prompt": True, "tools": tools})
        except PromptError:
            return ""


def _conversation(form: CallForm, tools: object) -> list[Message]:
    call = {"id": "mindbatch", "type": "function", "function": {"name": _NAME, "arguments": _ARGUMENTS}}
    asked = [{"role": "user", "content": "-"}, form.fitted({"role": "assistant", "tool_calls": [call]})]
    answer = {"role": "tool", "tool_call_id": call["id"], "name": _NAME, "content": "-"}
    return [*asked, answer] if tools else asked


def _shows_call(text: str) -> bool:
    """True if a call is in the text as a model may read it: not with arguments as Python writes them."""
    return _NAME in text and all(key in text for key in _ARGUMENTS) and _AS_PYTHON not in text


def _best(texts: Mapping[CallForm, str]) -> CallForm:
    """The first form that shows the call, or else that does not fail, and writes no null; those with objects
    are first, but for a template that shows them only as text."""
    as_text = not any(_shows_call(text) for form, text in texts.items() if not form.arguments_as_text)
    as_text = as_text and any(_AS_JSON in text for form, text in texts.items() if form.arguments_as_text)
    fit = {form: text for form, text in texts.items() if form.arguments_as_text == as_text and text}
    empty = fit.get(CallForm(as_text, ""), "")
    fit = {form: text for form, text in fit.items() if len(_nulls(text)) <= len(_nulls(empty))}
    shown = (form for form, text in fit.items() if _shows_call(text))
    return next(shown, next(iter(fit), CallForm(as_text, _ABSENT)))


def _nulls(text: str) -> list[str]:
    return _IS_NULL.findall(text)


def _with_joined_parts(message: Message) -> Message:
    """The message with its parts as one text, without a separator, for templates that take no parts."""
    if not isinstance(content := message.get("content"), list):
        return message
    return {**message, "content": "".join(part["text"] for part in content)}
