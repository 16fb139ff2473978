"""Owns ShareGPT's form of a conversation: [{"from": "human", "value": "Hi"}, ...]."""

from collections.abc import Mapping, Sequence
from typing import Any

from mindbatch.errors import PromptError
from mindbatch.fault_lines import shown

ROLES = {
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
    """Whether the value can only be meant as a conversation in this form."""
    return (
        isinstance(value, Sequence)
        and len(value) > 0
        and all(isinstance(turn, Mapping) and "from" in turn and "role" not in turn for turn in value)
    )


def messages_of(turns: Any, where: str) -> list[dict[str, Any]]:
    """The turns as messages with role and content; what else a turn holds (ids, weights) is left out.

    Raises:
        PromptError: a line for each turn of an unknown speaker or without a text.
    """
    faults = []
    for i, turn in enumerate(turns):
        if not isinstance(turn["from"], str) or turn["from"] not in ROLES:
            faults.append(f"{where}[{i}].from={shown(turn['from'])}: must be one of {', '.join(ROLES)}")
        if not isinstance(turn.get("value"), str):
            found = f"={shown(turn['value'])}" if "value" in turn else ": missing"
            faults.append(f"{where}[{i}].value{found}; must be a text")
    if faults:
        raise PromptError(faults)
    return [{"role": ROLES[turn["from"]], "content": turn["value"]} for turn in turns]
