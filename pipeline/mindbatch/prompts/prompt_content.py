"""Owns what one prompt may be: a text, token ids or a conversation, checked and in the form that is run."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from mindbatch.errors import PromptError
from mindbatch.fault_lines import shown
from mindbatch.prompts.chat_options import NO_OPTIONS, ChatOptions
from mindbatch.prompts.messages import checked_conversation, is_sharegpt, sharegpt_messages
from mindbatch.strict_json import unicode_fault

TOOLS, TEMPLATE_KWARGS = "tools", "chat_template_kwargs"
"""What a row may hold for the chat template beside its messages."""
_USUAL = ("prompt", "messages", "conversations")


def content_of(value: object, *, chat: bool = False, options: ChatOptions = NO_OPTIONS) -> dict[str, Any]:
    """One of text, token_ids and messages, as `Prompt` takes them; messages with their options.

    A list of mappings is a conversation. `chat` makes a text the one user message of a conversation.

    Raises:
        PromptError: a line for each fault; those of a conversation begin with "prompt".
    """
    if isinstance(value, str):
        text = _checked_text(value)
        return options.content([{"role": "user", "content": text}]) if chat else {"text": text}
    if is_conversation(value):
        return conversation_of(value, "prompt", options)
    if not is_list(value):
        raise PromptError(
            f"found {shown(value)}; must be a text (quote it), a list of token ids or a list of chat messages"
        )
    if chat:
        raise PromptError("token ids cannot be a chat message; give text or leave chat=true out")
    return {"token_ids": _checked_ids(value)}


def conversation_of(value: object, where: str, options: ChatOptions = NO_OPTIONS) -> dict[str, Any]:
    """The messages of one conversation with its options; one in ShareGPT's form is taken as well.

    Raises:
        PromptError: a line for each fault, each beginning with `where`.
    """
    messages = sharegpt_messages(value, where) if is_sharegpt(value) else value
    conversation = checked_conversation(messages, where)
    if options.system is not None and conversation[0]["role"] == "system":
        raise PromptError(f"{where}[0]: a system message is there already; remove it or system=...")
    return options.content(conversation)


def usual_name(row: Mapping[str, Any], names: Sequence[str] = _USUAL) -> str | None:
    """The column that holds a row's prompt where nobody named one: the first of `names` that is no null."""
    return next((name for name in names if row.get(name) is not None), None)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether the value is a sequence of values and no text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def is_conversation(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether the value can only be meant as messages: a list of nothing but mappings."""
    return is_list(value) and len(value) > 0 and all(isinstance(item, Mapping) for item in value)


def _checked_text(text: str) -> str:
    if not text:
        raise PromptError("the prompt is empty")
    if fault := unicode_fault(text):
        raise PromptError(f"the prompt {fault}")
    return text


def _checked_ids(ids: Sequence[object]) -> list[int]:
    """Only what needs no model is checked here: the engine knows the vocabulary."""
    if not ids:
        raise PromptError("the prompt is empty: no token ids")
    if all(isinstance(item, str) for item in ids):
        raise PromptError(f"found a list of texts, {shown(list(ids))}; a prompt is one text")
    good = [i for i in ids if isinstance(i, int) and not isinstance(i, bool) and i >= 0]
    if len(good) < len(ids):
        position, bad = next((n, i) for n, i in enumerate(ids) if type(i) is not int or i < 0)
        raise PromptError(f"token id {shown(bad)} at position {position}: must be an integer from 0")
    return good
