"""Checks chat conversations, ShareGPT's form of them too, and gives them the form that templates expect."""

from collections.abc import Mapping, Sequence
from typing import Any

from mindbatch.io.errors import PromptError
from mindbatch.io.fault_lines import did_you_mean, shown
from mindbatch.io.strict_json import value_faults

Message = dict[str, Any]

# "ipython" is Llama 3's name for a tool's answer; "function" the older OpenAI one.
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
_MOST_FAULTS = 20


def checked_conversation(messages: object, where: str = "messages") -> list[Message]:
    """A copy of one conversation in which every content is a string, a list of parts like
    {"type": "text", "text": ...}, or None beside tool calls.

    Keys other than role and content are handed to the template unchanged.

    Raises:
        PromptError: one line per fault, each beginning with `where` and the position of the message.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise PromptError(
            f"{where}: found {shown(messages)}; must be a list of messages with role and content"
        )
    if not messages:
        raise PromptError(f"{where}: holds no message; at least one with role and content is needed")
    faults: list[str] = []
    checked = [_checked_message(message, f"{where}[{i}]", faults) for i, message in enumerate(messages)]
    if faults:
        raise PromptError(faults)
    return checked


def _checked_message(message: object, where: str, faults: list[str]) -> Message:
    if not isinstance(message, Mapping):
        faults.append(f"{where}: found {shown(message)}; must be a mapping with role and content")
        return {}
    # A row's line names few of them, and near names take long to find.
    faults.extend(_role_faults(message, where, seek=len(faults) < _MOST_FAULTS))
    checked: Message = {**message, "content": _content(message, where, faults)}
    faults.extend(value_faults(checked, where))
    return checked


def with_joined_parts(message: Message) -> Message:
    """The message with its parts as one text, without a separator, for templates that take no parts."""
    content = message["content"]
    return {**message, "content": "".join(map(_text, content))} if isinstance(content, list) else message


def _text(part: Mapping[str, Any]) -> str:
    text: str = part["text"]
    return text


def _role_faults(message: Mapping[Any, Any], where: str, *, seek: bool) -> list[str]:
    role = message.get("role")
    if role in ROLES:
        return []
    allowed = f"must be one of {', '.join(ROLES)}"
    if "role" not in message:
        return [f"{where}.role: missing; {allowed}"]
    near = did_you_mean(role, ROLES) if seek and isinstance(role, str) else ""
    return [f"{where}.role={shown(role)}: {allowed}{near}"]


def _content(message: Mapping[Any, Any], where: str, faults: list[str]) -> str | list[Any] | None:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and message.get("tool_calls"):
        return None
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        for i, part in enumerate(content):
            faults.extend(_part_faults(part, f"{where}.content[{i}]"))
        return list(content)
    excerpt = f"={shown(content)}" if "content" in message else ": missing"
    faults.append(
        f'{where}.content{excerpt}; must be a string or a list of {{"type": "text", "text": ...}} parts'
    )
    return None


def _part_faults(part: object, where: str) -> list[str]:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return []
    return [f'{where}={shown(part)}: must be {{"type": "text", "text": ...}}; only text is supported']


SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
"""By ShareGPT's name of a speaker, the role of the message."""


def is_sharegpt(value: object) -> bool:
    """True if the value can only be ShareGPT's form of a chat: [{"from": "human", "value": "Hi"}, ...]."""
    return (
        isinstance(value, Sequence)
        and len(value) > 0
        and all(isinstance(turn, Mapping) and "from" in turn and "role" not in turn for turn in value)
    )


def sharegpt_messages(turns: Any, where: str) -> list[dict[str, Any]]:
    """The turns as messages with role and content; what else a turn holds (ids, weights) is left out.

    Raises:
        PromptError: a line for each turn of an unknown speaker or without a text.
    """
    faults = []
    for i, turn in enumerate(turns):
        if not isinstance(turn["from"], str) or turn["from"] not in SHAREGPT_ROLES:
            allowed = ", ".join(SHAREGPT_ROLES)
            faults.append(f"{where}[{i}].from={shown(turn['from'])}: must be one of {allowed}")
        if not isinstance(turn.get("value"), str):
            excerpt = f"={shown(turn['value'])}" if "value" in turn else ": missing"
            faults.append(f"{where}[{i}].value{excerpt}; must be a text")
    if faults:
        raise PromptError(faults)
    return [{"role": SHAREGPT_ROLES[turn["from"]], "content": turn["value"]} for turn in turns]
