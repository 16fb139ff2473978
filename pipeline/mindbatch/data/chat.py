"""Owns the chat templates of a model folder: which one applies, and rendering it safely."""

from collections.abc import Mapping, Sequence
from typing import Any

from mindbatch.data.chat_process import ChatLimits, ChatProcess
from mindbatch.data.messages import Message
from mindbatch.errors import PromptError


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

    def __bool__(self) -> bool:
        return bool(self._templates)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of one conversation, with the template's control tokens spelt out.

        `variables` are further names the template may know: tools, documents, enable_thinking...

        Raises:
            PromptError: no template, or one line on why it failed, refused the messages or went over a limit.
        """
        given = {"tools": None, "documents": None, **(variables or {})}
        return self._process.render(
            self._chosen(has_tools=given["tools"] is not None),
            {
                **self._named_tokens,
                **given,
                "messages": list(messages),
                "add_generation_prompt": add_generation_prompt,
            },
        )

    def close(self) -> None:
        """Ends the child process; a later `render` starts it again."""
        self._process.close()

    def _chosen(self, *, has_tools: bool) -> str:
        for name in ("tool_use", "default") if has_tools else ("default",):
            if name in self._templates:
                return self._templates[name]
        if not self._templates:
            raise PromptError(
                "chat messages: the model's tokenizer has no chat template; give the prompt as text"
            )
        raise PromptError(f"chat template: none is named default; found {', '.join(sorted(self._templates))}")
