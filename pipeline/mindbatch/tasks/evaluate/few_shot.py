"""Solved examples before a prompt: text before a text, turns before a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Content = Mapping[str, Any]
"""Content of a prompt, as `Prompt` takes it."""

SYSTEM = "system"


@dataclass(frozen=True)
class Examples:
    """Examples of a task, each a prompt with its right answer. separator: stands after each in a text."""

    solved: Sequence[tuple[Content, str]] = ()
    separator: str = ""

    def before(self, content: Content) -> Content:
        """A prompt with the examples before it; system messages are those of the prompt alone.

        Raises:
            ValueError: the prompt is a text and the examples are chats, or the other way round.
        """
        kind = _kind(content)
        others = {_kind(example) for example, _ in self.solved} - {kind}
        if others:
            raise ValueError(
                f"task.few_shot: the prompt is {kind}, the examples are {' and '.join(sorted(others))}"
            )
        if not self.solved:
            return content
        if kind == "text":
            solved = "".join(example["text"] + answer + self.separator for example, answer in self.solved)
            return {**content, "text": solved + content["text"]}
        messages = content["messages"]
        begin = sum(message["role"] == SYSTEM for message in messages[:1])
        return {**content, "messages": [*messages[:begin], *self._turns(), *messages[begin:]]}

    def _turns(self) -> list[Mapping[str, Any]]:
        turns: list[Mapping[str, Any]] = []
        for example, answer in self.solved:
            turns += [message for message in example["messages"] if message["role"] != SYSTEM]
            turns.append({"role": "assistant", "content": answer.strip()})
        return turns


def _kind(content: Content) -> str:
    return "chat" if "messages" in content else "text" if "text" in content else "token ids"
