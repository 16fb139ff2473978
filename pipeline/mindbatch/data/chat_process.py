"""Owns rendering templates in a child process with limits."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mindbatch.children import AnsweringProcess, ChildDied, Limits, ProcessorTimeUsedUp
from mindbatch.data import chat_worker
from mindbatch.errors import PromptError

_BYTES_PER_CHARACTER = 12  # the longest JSON escape of one character: two \uXXXX
_MOST_OTHER_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ChatLimits(Limits):
    """What one rendering may use: seconds of processor time, bytes of address space, characters of output."""

    seconds: float = 5.0
    memory_bytes: int = 1 << 30
    max_characters: int = 1 << 24


class TemplateTimeout(PromptError):
    """A rendering that took longer than its limit."""


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
        self._process = AnsweringProcess(chat_worker.main, self.limits, str(self.limits.max_characters), kind)

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """The template's output.

        Raises:
            TemplateTimeout: it took longer than the limit.
            PromptError: one line: the template failed, refused the messages or went over a limit.
        """
        text: str = self._ask({"template": template, "variables": dict(variables)}, "text")
        return text

    def names(self, template: str) -> list[str]:
        """The variables that the template looks up, without rendering it.

        Raises:
            PromptError: one line: it cannot be compiled within the limits.
        """
        names: list[str] = self._ask({"template": template}, "names")
        return names

    def close(self) -> None:
        """Ends the child; the next `render` would start a new one."""
        self._process.close()

    def _ask(self, question: dict[str, Any], wanted: str) -> Any:
        try:
            request = json.dumps(question).encode("ascii")
        except (RecursionError, TypeError, ValueError) as error:
            raise self._fault(f"what it is given is no plain JSON ({error})") from error
        most_bytes = _BYTES_PER_CHARACTER * self.limits.max_characters + _MOST_OTHER_BYTES
        try:
            answer = self._process.ask(request, most_bytes)
        except ProcessorTimeUsedUp:
            reason = f"stopped: no result after {self.limits.seconds:g} s of processor time"
            raise TemplateTimeout(f"{self._subject}: {reason}") from None
        except ChildDied as error:
            raise self._fault(str(error)) from error
        if wanted not in answer:
            raise self._fault(answer["error"])
        return answer[wanted]

    def _fault(self, reason: str) -> PromptError:
        return PromptError(f"{self._subject}: {reason}")
