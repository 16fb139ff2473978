"""Answers behind prompts: solved examples before one that is asked, and continuations that are scored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mindbatch.io.errors import MindBatchError
from mindbatch.prompts.prompts import Prompt, token_ids_of
from mindbatch.prompts.tokenizer import Tokenizer

Content = Mapping[str, Any]
"""Content of a prompt, as `Prompt` takes it."""

SYSTEM = "system"
_ASKED, _ANSWERED = "question", "answer"
"""A chat by which a template shows what it writes before an answer."""


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


def text_joint(prefix: str | None, text: str, answer: str) -> str:
    """Chooses the separator of a text and an answer.

    It is `task.target_prefix`; or else one space, unless the text ends or the answer begins with white space.
    """
    if prefix is not None:
        return prefix
    return "" if not text or text[-1].isspace() or answer[:1].isspace() else " "


@dataclass(frozen=True)
class Continuations:
    """Prompts continued by given answers, for one tokenizer. prefix: `task.target_prefix`."""

    prefix: str | None
    tokenizer: Tokenizer

    def text(self, content: Content, answer: str) -> str:
        """The answer with what stands between the prompt and it."""
        if self.prefix is not None or answer[:1].isspace() or self.tokenizer.output_start:
            return (self.prefix or "") + answer  # behind `output_start` it begins a text
        if "messages" in content:
            return self._chat_joint + answer
        text = content.get("text") or self.tokenizer.decode(content.get("token_ids", ()))
        return text_joint(None, text, answer) + answer

    def tokens(self, content: Content, answer: str) -> tuple[list[int], int]:
        """The tokens of a prompt and its continuation, encoded as one text, and how many of them are scored.

        Scored are those that reach beyond the last character of the prompt: white space at its end is in a
        token with the first word behind it, where a vocabulary has them together. What stands behind
        `output_start`, or behind token ids that are no text's, is encoded by itself. Before what has no
        prompt stands the token that begins a text, if there is one.
        """
        text, tokenizer = self.text(content, answer), self.tokenizer
        if not tokenizer.output_start and (prompt := self._prompt_text(content)):
            tokens, count = tokenizer.encode_continued(prompt, text)
        elif not tokenizer.output_start and "messages" in content:
            tools = {"tools": content.get("tools")}
            variables = {**(content.get("chat_template_kwargs") or {}), **tools}
            tokens, count = tokenizer.encode_chat_continued(
                content["messages"], text, variables, content.get("date")
            )
        else:
            added = tokenizer.encode(text, add_special_tokens=False)
            context = token_ids_of(Prompt(key="", source="", **content), tokenizer)
            tokens, count = [*context, *added], len(added)
        begin = tokenizer.bos_token_id
        if count == len(tokens) and begin is not None and tokens[:1] != [begin]:
            tokens = [begin, *tokens]
        return tokens, count

    def _prompt_text(self, content: Content) -> str | None:
        """The text of a prompt, also of token ids that are those of a text."""
        if "token_ids" not in content:
            return content.get("text")
        text = self.tokenizer.decode(content["token_ids"])
        return text if self.tokenizer.encode(text) == [*content["token_ids"]] else None

    @cached_property
    def _chat_joint(self) -> str:
        """The white space that the chat template writes between its generation prompt and an answer; where it
        writes something else there, as with a text."""
        asked = [{"role": "user", "content": _ASKED}]
        try:
            prompt = self.tokenizer.chat_text(asked)
            whole = self.tokenizer.chat_text(
                [*asked, {"role": "assistant", "content": _ANSWERED}], add_generation_prompt=False
            )
        except MindBatchError:
            return ""  # the row's own chat tells why
        between, marker, _ = whole.removeprefix(prompt).partition(_ANSWERED)
        is_written = whole.startswith(prompt) and marker and not between.strip()
        return between if is_written else text_joint(None, prompt, _ANSWERED)
