"""Owns the chat templates of a model folder: which one applies, and rendering it safely."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mindbatch.io.amounts import today
from mindbatch.io.errors import PromptError
from mindbatch.prompts.chat_process import ChatLimits, ChatProcess
from mindbatch.prompts.messages import Message, with_joined_parts

_PROBE = "mindbatch probes for parts"
_AS_LIST = re.compile(rf"""["']text["']\s*:\s*["']{_PROBE}""")
"""A part written out as a value, by a template that takes every content for a text."""


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
        self._take_parts: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._templates)

    @property
    def usual(self) -> str | None:
        """The template of chats without tools; None where there is none."""
        return self._templates.get("default")

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        date: str | None = None,
    ) -> str:
        """The text of one conversation, with the template's control tokens spelt out.

        A content in parts reaches a template that knows parts as it is, and others as one text.

        `variables` are further names the template may know: tools, documents, enable_thinking... `date` is
        what its clock says, as YYYY-MM-DD; None is today.

        Raises:
            PromptError: no template, or one line on why it failed, refused the messages or went over a limit.
        """
        template_variables = {"tools": None, "documents": None, **(variables or {})}
        template = self._chosen(has_tools=template_variables["tools"] is not None)
        if any(isinstance(message.get("content"), list) for message in messages):
            messages = messages if self._takes_parts(template) else [*map(with_joined_parts, messages)]
        template_variables |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        return self._process.render(
            template, {**self._named_tokens, **template_variables}, date=date or today()
        )

    def close(self) -> None:
        """Ends the child process; a later `render` starts it again."""
        self._process.close()

    def _takes_parts(self, template: str) -> bool:
        """True if the template reads a content in parts; found out once, by giving it one."""
        if template not in self._take_parts:
            message = {"role": "user", "content": [{"type": "text", "text": _PROBE}]}
            probe_variables = {
                "tools": None,
                "documents": None,
                "messages": [message],
                "add_generation_prompt": True,
            }
            try:
                text = self._process.render(template, {**self._named_tokens, **probe_variables}, date=today())
            except PromptError:
                text = ""
            self._take_parts[template] = _PROBE in text and not _AS_LIST.search(text)
        return self._take_parts[template]

    def _chosen(self, *, has_tools: bool) -> str:
        for name in ("tool_use", "default") if has_tools else ("default",):
            if name in self._templates:
                return self._templates[name]
        if not self._templates:
            raise PromptError(
                "chat messages: the model's tokenizer has no chat template; give the prompt as text"
            )
        raise PromptError(f"chat template: none is named default; found {', '.join(sorted(self._templates))}")
