"""Checks chat conversations, also in ShareGPT's format, and the other variables of chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindbatch.io.amounts import DAY_RULE, is_day
from mindbatch.io.error_lines import did_you_mean, shown
from mindbatch.io.errors import ConfigError, PromptError
from mindbatch.io.regular_file import read_regular
from mindbatch.io.strict_json import JsonError, unicode_error, value_errors
from mindbatch.prompts.prompt_lines import parse_json, utf8_error
from mindbatch.prompts.tool_calls import checked_calls, without_nulls

Message = dict[str, Any]

# "ipython" is Llama 3's name for a tool's answer; "function" the older OpenAI one.
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
_MAX_ERRORS = 20
_REPLACES_CONTENT = ("tool_calls", "function_call", "refusal", "reasoning_content", "reasoning", "thinking")
"""Members with any of which a message needs no content."""
MAX_MESSAGES = 20_000
"""Maximum of messages in a conversation, and of parts in a content."""
MAX_TOOLS = 2000
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the reasoning of a message in different programs."""


def checked_conversation(messages: object, where: str = "messages") -> list[Message]:
    """Checks a conversation and returns a copy in which every content is a string or a list of parts such as
    {"type": "text", "text": ...}; a message with calls may have none.

    Nulls in messages, parts and calls are removed, because templates write them as text, and so are empty
    lists of calls. Reasoning under any of its names becomes reasoning_content and thinking, one of which
    templates read. Other keys are passed to the template unchanged.

    Raises:
        PromptError: one line per error, each starting with `where` and the position of the message.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise PromptError(
            f"{where}: found {shown(messages)}; must be a list of messages with role and content"
        )
    if not messages:
        raise PromptError(f"{where}: empty; must have a message with role and content")
    if len(messages) > MAX_MESSAGES:
        raise PromptError(f"{where}: has {len(messages)} messages; at most {MAX_MESSAGES}")
    errors: list[str] = []
    checked = [_checked_message(message, f"{where}[{i}]", errors) for i, message in enumerate(messages)]
    if errors:
        raise PromptError(errors)
    return checked


def _checked_message(message: object, where: str, errors: list[str]) -> Message:
    if not isinstance(message, Mapping):
        errors.append(f"{where}: found {shown(message)}; must be a mapping with role and content")
        return {}
    # A row's line lists few errors, and finding similar names is slow.
    errors.extend(_role_errors(message, where, suggest=len(errors) < _MAX_ERRORS))
    checked: Message = without_nulls(message)
    if (reasoning := next((checked[name] for name in _REASONING if name in checked), None)) is not None:
        checked = {"thinking": reasoning, **checked, "reasoning_content": reasoning}
    if (content := _content(message, where, errors)) is not None:
        checked["content"] = content
    if (calls := checked.get("tool_calls")) == []:
        del checked["tool_calls"]
    elif calls is not None:
        checked["tool_calls"] = checked_calls(calls, f"{where}.tool_calls", errors)
    errors.extend(value_errors(checked, where))
    return checked


def _role_errors(message: Mapping[Any, Any], where: str, *, suggest: bool) -> list[str]:
    role = message.get("role")
    if role in ROLES:
        return []
    allowed = f"must be one of {', '.join(ROLES)}"
    if "role" not in message:
        return [f"{where}.role: missing; {allowed}"]
    hint = did_you_mean(role, ROLES) if suggest and isinstance(role, str) else ""
    return [f"{where}.role={shown(role)}: {allowed}{hint}"]


def _content(message: Mapping[Any, Any], where: str, errors: list[str]) -> str | list[Any] | None:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and any(message.get(name) for name in _REPLACES_CONTENT):
        return None
    if content is None and "content" in message and message.get("role") == "assistant":
        return ""  # other servers accept an answer without content
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        if len(content) > MAX_MESSAGES:
            errors.append(f"{where}.content: has {len(content)} parts; at most {MAX_MESSAGES}")
            return None
        for i, part in enumerate(content):
            errors.extend(_part_errors(part, f"{where}.content[{i}]"))
        return [without_nulls(part) if isinstance(part, Mapping) else part for part in content]
    excerpt = f"={shown(content)}" if "content" in message else ": missing"
    errors.append(
        f'{where}.content{excerpt}; must be a string or a list of {{"type": "text", "text": ...}} parts'
    )
    return None


def _part_errors(part: object, where: str) -> list[str]:
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
"""Roles of messages by ShareGPT's name of the speaker."""


def is_sharegpt(value: object) -> bool:
    """True if the value is a chat in ShareGPT's format: [{"from": "human", "value": "Hi"}, ...]."""
    return (
        isinstance(value, Sequence)
        and len(value) > 0
        and all(isinstance(turn, Mapping) and "from" in turn and "role" not in turn for turn in value)
    )


def sharegpt_messages(turns: Any, where: str) -> list[dict[str, Any]]:
    """Converts turns to messages with role and content; other keys (ids, weights) are dropped.

    Raises:
        PromptError: one line per turn with an unknown speaker or without a text.
    """
    errors = []
    if len(turns) > MAX_MESSAGES:
        raise PromptError(f"{where}: has {len(turns)} messages; at most {MAX_MESSAGES}")
    for i, turn in enumerate(turns):
        if not isinstance(turn["from"], str) or turn["from"] not in SHAREGPT_ROLES:
            allowed = ", ".join(SHAREGPT_ROLES)
            errors.append(f"{where}[{i}].from={shown(turn['from'])}: must be one of {allowed}")
        if not isinstance(turn.get("value"), str):
            excerpt = f"={shown(turn['value'])}" if "value" in turn else ": missing"
            errors.append(f"{where}[{i}].value{excerpt}; must be a text")
    if errors:
        raise PromptError(errors)
    return [{"role": SHAREGPT_ROLES[turn["from"]], "content": turn["value"]} for turn in turns]


LARGEST_TOOLS_FILE = 1 << 20
"""Maximum bytes of a file of tools."""

_RESERVED = frozenset(
    (
        *("conversation", "messages", "tools", "chat_template", "add_generation_prompt", "tokenize"),
        *("continue_final_message", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
        *("return_assistant_tokens_mask", "tokenizer_kwargs"),
    )
)
"""Arguments of transformers' apply_chat_template besides the variables of a template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """The checked options of a conversation besides its messages; None where not set.

    system: the system message to put first.
    tools: JSON objects, passed to the template unchanged.
    chat_template_kwargs: further variables of the template, such as enable_thinking.
    date: the date of the template's clock, as YYYY-MM-DD.
    """

    system: str | None = None
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    date: str | None = None

    def of_row(self, tools: object, kwargs: object, tools_at: str, kwargs_at: str) -> ChatOptions:
        """Returns options in which the row's tools replace these tools and its variables override these.

        Raises:
            PromptError: one line per error, which starts with the name of the value.
        """
        own_tools, own_kwargs, errors = _checked(tools, kwargs, tools_at, kwargs_at)
        if errors:
            raise PromptError(errors)
        merged = {**(self.chat_template_kwargs or {}), **own_kwargs}
        return replace(self, tools=own_tools or self.tools, chat_template_kwargs=merged or None)

    def content(self, messages: list[Message]) -> dict[str, Any]:
        """Returns the fields of a `Prompt` with the conversation, the system message first."""
        before = [] if self.system is None else [{"role": "system", "content": self.system}]
        content: dict[str, Any] = {"messages": [*before, *messages]}
        names = ("tools", "chat_template_kwargs", "date")
        return content | {name: getattr(self, name) for name in names if getattr(self, name) is not None}


NO_OPTIONS = ChatOptions()


def conversation_of(value: object, where: str, options: ChatOptions = NO_OPTIONS) -> dict[str, Any]:
    """Checks the messages of one conversation, also in ShareGPT's format, and adds its options.

    Raises:
        PromptError: one line per error, each starting with `where`.
    """
    messages = sharegpt_messages(value, where) if is_sharegpt(value) else value
    conversation = checked_conversation(messages, where)
    if options.system is not None and conversation[0]["role"] == "system":
        raise PromptError(f"{where}[0]: a system message already exists; remove it or system=...")
    return options.content(conversation)


def chat_options(
    system: str | None = None,
    tools: object = None,
    chat_template_kwargs: object = None,
    date: str | None = None,
    *,
    prefix: str = "",
    errors: Sequence[str] = (),
) -> ChatOptions:
    """Checks the options of a run.

    Args:
        tools: the tools, or the path of a JSON file with them.
        prefix: precedes the names of the options in error lines.
        errors: earlier errors to report with these.

    Raises:
        ConfigError: one line per error.
    """
    errors = [*errors]
    if system is not None and (problem := unicode_error(system) if system else "is empty; remove it"):
        errors.append(f"{prefix}system {problem}")
    if date is not None and not is_day(date):
        errors.append(f"{prefix}date={shown(date)}: {DAY_RULE}")
    try:
        tool_list = _file_value(Path(tools)) if isinstance(tools, str | Path) else tools
    except PromptError as error:
        raise ConfigError([*errors, f"{prefix}tools={tools}: {error}"]) from error
    names = f"{prefix}tools", f"{prefix}chat_template_kwargs"
    own_tools, kwargs, more = _checked(tool_list, chat_template_kwargs, *names)
    if errors := errors + more:
        raise ConfigError(errors)
    return ChatOptions(system=system, tools=own_tools or None, chat_template_kwargs=kwargs or None, date=date)


def _checked(
    tools: object, kwargs: object, tools_at: str, kwargs_at: str
) -> tuple[list[Any], dict[str, Any], list[str]]:
    """Returns both as plain values, empty where not set, and one line per error."""
    own_tools: list[Any] = []
    own_kwargs: dict[str, Any] = {}
    errors = []
    if isinstance(tools, list | tuple) and len(tools) > MAX_TOOLS:
        errors.append(f"{tools_at}: has {len(tools)} tools; at most {MAX_TOOLS}")
    elif isinstance(tools, list | tuple) and all(isinstance(tool, Mapping) and tool for tool in tools):
        own_tools = list(tools)
        errors += value_errors(own_tools, tools_at)
    elif tools is not None:
        errors.append(
            f"{tools_at}={shown(tools)}: must be a list of JSON objects such as "
            '{"type": "function", "function": {"name": ..., "parameters": ...}}'
        )
    if isinstance(kwargs, Mapping):
        own_kwargs = dict(kwargs)
        errors += [
            f"{kwargs_at}.{name}: not a variable of a template" for name in kwargs if name in _RESERVED
        ]
        errors += value_errors(own_kwargs, kwargs_at)
    elif kwargs is not None:
        errors.append(f"{kwargs_at}={shown(kwargs)}: must be a mapping such as {{enable_thinking: false}}")
    return own_tools, own_kwargs, errors


def _file_value(path: Path) -> Any:
    """Reads a JSON file. Raises PromptError."""
    try:
        return parse_json(read_regular(path, LARGEST_TOOLS_FILE).decode("utf-8-sig"))
    except OSError as error:
        raise PromptError(f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PromptError(utf8_error(error)) from error
    except JsonError as problem:
        raise PromptError(str(problem)) from problem
