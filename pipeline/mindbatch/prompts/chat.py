"""Owns the chat templates of a model folder, and rendering any template in a child process with limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from mindbatch.io.amounts import today
from mindbatch.io.children import AnsweringProcess, ChildDied, Limits, ProcessorTimeUsedUp
from mindbatch.io.errors import ConfigError, PromptError
from mindbatch.prompts import chat_worker
from mindbatch.prompts.messages import Message
from mindbatch.prompts.template_forms import TemplateForms


class ChatTemplates:
    """The named templates of one tokenizer, rendered in a sandboxed child process.

    `named_tokens` are the variables bos_token, eos_token and the like, as in tokenizer_config.json.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        named_tokens: Mapping[str, Any] | None = None,
        limits: ChatLimits | None = None,
    ) -> None:
        self._templates = dict(templates)
        self._named_tokens = dict(named_tokens or {})
        self._process = ChatProcess(limits)
        self._forms = TemplateForms(self._rendered)

    def __bool__(self) -> bool:
        return bool(self._templates)

    @property
    def usual(self) -> str | None:
        """The template of chats without tools; None where there is none."""
        return self._templates.get("default")

    @property
    def with_tools(self) -> str | None:
        """The template of chats with tools; None where there is none."""
        return self._templates.get("tool_use", self.usual)

    def fitted(self, messages: Sequence[Message], *, has_tools: bool = False) -> list[Message]:
        """Messages that were checked, in the form which the template of such a chat takes; see `render`."""
        return self._forms.fitted(self._chosen(has_tools=has_tools), messages)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        date: str | None = None,
    ) -> str:
        """The text of one conversation that was `fitted`, with the template's control tokens spelt out.

        `variables` are further names the template may know: tools, documents, enable_thinking... `date` is
        what its clock says, as YYYY-MM-DD; None is today.

        Raises:
            PromptError: no template, or one line on why it failed, refused the messages or went over a limit.
        """
        own_variables = {**(variables or {}), "add_generation_prompt": add_generation_prompt}
        template = self._chosen(has_tools=own_variables.get("tools") is not None)
        return self._rendered(template, messages, own_variables, date)

    def close(self) -> None:
        self._process.close()

    def _rendered(
        self,
        template: str,
        messages: Sequence[Message],
        variables: dict[str, Any],
        date: str | None = None,
    ) -> str:
        without = {"tools": None, "documents": None}
        everything = {**self._named_tokens, **without, **variables, "messages": list(messages)}
        return self._process.render(template, everything, date=date or today())

    def _chosen(self, *, has_tools: bool) -> str:
        for name in ("tool_use", "default") if has_tools else ("default",):
            if name in self._templates:
                return self._templates[name]
        if not self._templates:
            raise PromptError(
                "chat messages: the model's tokenizer has no chat template; give the prompt as text"
            )
        raise PromptError(f"chat template: none is named default; found {', '.join(sorted(self._templates))}")


_BYTES_PER_CHARACTER = 12  # the longest JSON escape of one character: two \uXXXX
_MOST_OTHER_BYTES = 1 << 16
MOST_TIMEOUTS = 3
"""Rows in a row that may run out of time before the template, not the data, is to blame."""
_PATIENCE = 10
"""So many times the limits are for a row that has been rendered within them before."""


@dataclass(frozen=True, kw_only=True)
class ChatLimits(Limits):
    """Limits of one rendering: seconds of processor time, bytes of address space, characters of output."""

    seconds: float = 5.0
    memory_bytes: int = 1 << 30
    max_characters: int = 1 << 24


class TemplateLimit(PromptError):
    """A rendering that needs more than it may use."""


class TemplateTimeout(TemplateLimit):
    """More processor time."""


class ChatProcess:
    """Renders templates in a child process; safe to call from several threads and after a fork.

    `subject` begins every error line: what the template is to the user. Templates of the kind "chat" get the
    surface that transformers documents; those of the kind "data" are strict: see `chat_worker.data_sandbox`.
    """

    def __init__(
        self,
        limits: ChatLimits | None = None,
        *,
        subject: str = "chat template",
        kind: Literal["chat", "data"] = "chat",
    ) -> None:
        self.limits = limits or ChatLimits()
        self._subject = subject
        self._process = self._process_with(self.limits, kind)
        seconds, memory_bytes = _PATIENCE * self.limits.seconds, _PATIENCE * self.limits.memory_bytes
        patient = replace(self.limits, seconds=seconds, memory_bytes=memory_bytes)
        self._patient = self._process_with(patient, kind)
        self._timeouts = 0

    @staticmethod
    def _process_with(limits: ChatLimits, kind: str) -> AnsweringProcess:
        """Started when it is first asked."""
        return AnsweringProcess(chat_worker.main, limits, str(limits.max_characters), kind)

    def render(
        self,
        template: str,
        variables: Mapping[str, Any],
        was_rendered: Callable[[], bool] = lambda: False,
        date: str | None = None,
    ) -> str:
        """The template's output.

        date: what its clock says, as YYYY-MM-DD; None: it has no clock.
        was_rendered: whether it is known to be so from an earlier session; asked where a limit is reached.

        Raises:
            TemplateLimit: it needs more time or memory than it may use.
            PromptError: one line: the template failed, refused the messages or gave too long a text.
            ConfigError: it ran out of time for several rows in a row.
        """
        question = {"template": template, "variables": dict(variables), "date": date}
        try:
            text: str = self._ask(self._process, question, "text")
        except TemplateLimit as limit:
            if was_rendered():
                return str(self._ask(self._patient, question, "text"))
            self._count(limit)
            raise
        except PromptError:
            self._timeouts = 0
            raise
        self._timeouts = 0
        return text

    def names(self, template: str) -> list[str]:
        """The variables that the template looks up, without rendering it.

        Raises:
            PromptError: one line: it cannot be compiled within the limits.
        """
        names: list[str] = self._ask(self._process, {"template": template}, "names")
        return names

    def close(self) -> None:
        self._process.close()
        self._patient.close()

    def _count(self, limit: TemplateLimit) -> None:
        self._timeouts = self._timeouts + 1 if isinstance(limit, TemplateTimeout) else 0
        if self._timeouts >= MOST_TIMEOUTS:
            raise ConfigError(f"{limit}, for {self._timeouts} rows in a row") from limit

    def _ask(self, process: AnsweringProcess, question: dict[str, Any], wanted: str) -> Any:
        try:
            request = json.dumps(question).encode("ascii")
        except (RecursionError, TypeError, ValueError) as error:
            raise self._error(f"what it is given is no plain JSON ({error})") from error
        most_bytes = _BYTES_PER_CHARACTER * self.limits.max_characters + _MOST_OTHER_BYTES
        try:
            answer = process.ask(request, most_bytes)
        except ProcessorTimeUsedUp:
            reason = f"stopped: no result after {self.limits.seconds:g} s of processor time"
            raise TemplateTimeout(f"{self._subject}: {reason}") from None
        except ChildDied as error:
            raise TemplateLimit(f"{self._subject}: {error}") from error
        if "needs" in answer:
            raise TemplateLimit(f"{self._subject}: needs {answer['needs']}")
        if wanted not in answer:
            raise self._error(answer["error"])
        return answer[wanted]

    def _error(self, reason: str) -> PromptError:
        return PromptError(f"{self._subject}: {reason}")
