"""Renders the chat templates of a model folder, or any template, in a child process with limits."""

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
    """Renders the named templates of one tokenizer in a sandboxed child process.

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
    def default(self) -> str | None:
        """The template of chats without tools, or None."""
        return self._templates.get("default")

    @property
    def with_tools(self) -> str | None:
        """The template of chats with tools, or None."""
        return self._templates.get("tool_use", self.default)

    def adapted(self, messages: Sequence[Message], *, has_tools: bool = False) -> list[Message]:
        """Returns checked messages in the form that the template reads, ready to `render`."""
        return self._forms.adapted(self._chosen(has_tools=has_tools), messages)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        date: str | None = None,
    ) -> str:
        """Renders a conversation that was `adapted`, with the template's control tokens spelt out.

        Args:
            variables: further variables of the template: tools, documents, enable_thinking...
            date: the date of the template's clock, as YYYY-MM-DD; None is today.

        Raises:
            PromptError: there is no template, or it failed, refused the messages or exceeded a limit.
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
                "chat messages: the model's tokenizer has no chat template; use a text as prompt"
            )
        raise PromptError(
            f"chat template: no template is named default, only {', '.join(sorted(self._templates))}"
        )


_BYTES_PER_CHARACTER = 12  # the longest JSON escape of one character: two \uXXXX
_MAX_OTHER_BYTES = 1 << 16
MAX_TIMEOUTS = 3
"""Consecutive rows that may time out before the template is refused, not the data."""
_PATIENCE = 10
"""Factor of the limits for a row that an earlier session rendered within them."""


@dataclass(frozen=True, kw_only=True)
class ChatLimits(Limits):
    """Limits of one rendering: seconds of processor time, bytes of address space, characters of output."""

    seconds: float = 5.0
    memory_bytes: int = 1 << 30
    max_characters: int = 1 << 24


class TemplateLimit(PromptError):
    """Raised when a rendering exceeds a limit."""


class TemplateTimeout(TemplateLimit):
    """Raised when a rendering exceeds the limit of processor time."""


class ChatProcess:
    """Renders templates in a child process; safe to call from several threads and after a fork.

    `subject` names the template at the start of error lines. Templates of the kind "chat" get the variables
    and functions that transformers documents; those of the kind "data" are strict: see
    `chat_worker.data_sandbox`.
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
        """Makes a process that starts at its first request."""
        return AnsweringProcess(chat_worker.main, limits, str(limits.max_characters), kind)

    def render(
        self,
        template: str,
        variables: Mapping[str, Any],
        was_rendered: Callable[[], bool] = lambda: False,
        date: str | None = None,
    ) -> str:
        """Renders the template.

        Args:
            date: the date of the template's clock, as YYYY-MM-DD; None: it has no clock.
            was_rendered: called when a limit is exceeded; returns True if an earlier session has rendered
                the same row, which then gets _PATIENCE times the limits.

        Raises:
            TemplateLimit: it needs more time or memory than allowed.
            PromptError: the template failed, refused the messages or wrote too long a text.
            ConfigError: it timed out for several consecutive rows.
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
        """Returns the variables that the template reads, without rendering it.

        Raises:
            PromptError: it cannot be compiled within the limits.
        """
        names: list[str] = self._ask(self._process, {"template": template}, "names")
        return names

    def close(self) -> None:
        self._process.close()
        self._patient.close()

    def _count(self, limit: TemplateLimit) -> None:
        self._timeouts = self._timeouts + 1 if isinstance(limit, TemplateTimeout) else 0
        if self._timeouts >= MAX_TIMEOUTS:
            raise ConfigError(f"{limit}, for {self._timeouts} consecutive rows") from limit

    def _ask(self, process: AnsweringProcess, question: dict[str, Any], key: str) -> Any:
        try:
            request = json.dumps(question).encode("ascii")
        except (RecursionError, TypeError, ValueError) as error:
            raise self._error(f"its variables are not plain JSON ({error})") from error
        max_bytes = _BYTES_PER_CHARACTER * self.limits.max_characters + _MAX_OTHER_BYTES
        try:
            answer = process.ask(request, max_bytes)
        except ProcessorTimeUsedUp:
            reason = f"stopped: no result after {self.limits.seconds:g} s of processor time"
            raise TemplateTimeout(f"{self._subject}: {reason}") from None
        except ChildDied as error:
            raise TemplateLimit(f"{self._subject}: {error}") from error
        if "needs" in answer:
            raise TemplateLimit(f"{self._subject}: needs {answer['needs']}")
        if key not in answer:
            raise self._error(answer["error"])
        return answer[key]

    def _error(self, reason: str) -> PromptError:
        return PromptError(f"{self._subject}: {reason}")
