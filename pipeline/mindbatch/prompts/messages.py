"""Checks chat conversations, ShareGPT's form of them too, and what chat templates are given beside them."""

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
_MOST_ERRORS = 20
_INSTEAD = ("tool_calls", "function_call", "refusal", "reasoning_content", "reasoning", "thinking")
"""Members beside which a message needs no content."""
MOST_MESSAGES = 20_000
"""Messages of a conversation, and parts of the content of one."""
MOST_TOOLS = 2000
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names that programs give to the reasoning of a message."""


def checked_conversation(messages: object, where: str = "messages") -> list[Message]:
    """A copy of one conversation in which every content is a string or a list of parts like
    {"type": "text", "text": ...}; a message with calls may have none.

    What is null in a message, its parts and its calls is left out, as an empty list of calls is: to a
    template null is text. Reasoning is there as reasoning_content and as thinking, by whichever name it came:
    templates read one of the two. Other keys are handed to the template unchanged.

    Raises:
        PromptError: one line per error, each beginning with `where` and the position of the message.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise PromptError(
            f"{where}: found {shown(messages)}; must be a list of messages with role and content"
        )
    if not messages:
        raise PromptError(f"{where}: holds no message; at least one with role and content is needed")
    if len(messages) > MOST_MESSAGES:
        raise PromptError(f"{where}: holds {len(messages)} messages; at most {MOST_MESSAGES}")
    errors: list[str] = []
    checked = [_checked_message(message, f"{where}[{i}]", errors) for i, message in enumerate(messages)]
    if errors:
        raise PromptError(errors)
    return checked


def _checked_message(message: object, where: str, errors: list[str]) -> Message:
    if not isinstance(message, Mapping):
        errors.append(f"{where}: found {shown(message)}; must be a mapping with role and content")
        return {}
    # A row's line names few of them, and near names take long to find.
    errors.extend(_role_errors(message, where, seek=len(errors) < _MOST_ERRORS))
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


def _role_errors(message: Mapping[Any, Any], where: str, *, seek: bool) -> list[str]:
    role = message.get("role")
    if role in ROLES:
        return []
    allowed = f"must be one of {', '.join(ROLES)}"
    if "role" not in message:
        return [f"{where}.role: missing; {allowed}"]
    near = did_you_mean(role, ROLES) if seek and isinstance(role, str) else ""
    return [f"{where}.role={shown(role)}: {allowed}{near}"]


def _content(message: Mapping[Any, Any], where: str, errors: list[str]) -> str | list[Any] | None:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and any(message.get(name) for name in _INSTEAD):
        return None
    if content is None and "content" in message and message.get("role") == "assistant":
        return ""  # as other servers take an answer that had none
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        if len(content) > MOST_MESSAGES:
            errors.append(f"{where}.content: holds {len(content)} parts; at most {MOST_MESSAGES}")
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
    errors = []
    if len(turns) > MOST_MESSAGES:
        raise PromptError(f"{where}: holds {len(turns)} messages; at most {MOST_MESSAGES}")
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
"""Bytes of a file of tools."""

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
    """Options of a conversation besides its messages; checked, and None where there is nothing.

    system: the message put before the others. tools: JSON objects, as the template shall write them.
    chat_template_kwargs: further variables of the template, like enable_thinking. date: what its clock says.
    """

    system: str | None = None
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    date: str | None = None

    def of_row(self, tools: object, kwargs: object, tools_at: str, kwargs_at: str) -> ChatOptions:
        """With what a row says itself: its tools in place of these, its variables before these.

        Raises:
            PromptError: a line for each error, which begins with the name of the value.
        """
        own_tools, own_kwargs, errors = _checked(tools, kwargs, tools_at, kwargs_at)
        if errors:
            raise PromptError(errors)
        merged = {**(self.chat_template_kwargs or {}), **own_kwargs}
        return replace(self, tools=own_tools or self.tools, chat_template_kwargs=merged or None)

    def content(self, messages: list[Message]) -> dict[str, Any]:
        """A conversation as `Prompt` takes it, the system message before it."""
        before = [] if self.system is None else [{"role": "system", "content": self.system}]
        content: dict[str, Any] = {"messages": [*before, *messages]}
        names = ("tools", "chat_template_kwargs", "date")
        return content | {name: getattr(self, name) for name in names if getattr(self, name) is not None}


NO_OPTIONS = ChatOptions()


def conversation_of(value: object, where: str, options: ChatOptions = NO_OPTIONS) -> dict[str, Any]:
    """The messages of one conversation with its options; one in ShareGPT's form is taken as well.

    Raises:
        PromptError: a line for each error, each beginning with `where`.
    """
    messages = sharegpt_messages(value, where) if is_sharegpt(value) else value
    conversation = checked_conversation(messages, where)
    if options.system is not None and conversation[0]["role"] == "system":
        raise PromptError(f"{where}[0]: a system message is there already; remove it or system=...")
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
    """The options of a run. `tools` may be the path of a JSON file.

    prefix: goes before their names in problem lines. errors: those that were found already.

    Raises:
        ConfigError: a line for each problem.
    """
    errors = [*errors]
    if system is not None and (problem := unicode_error(system) if system else "is empty; leave it out"):
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
    """Returns both in their plain form, empty where nothing is given, and a line for each error."""
    own_tools: list[Any] = []
    own_kwargs: dict[str, Any] = {}
    errors = []
    if isinstance(tools, list | tuple) and len(tools) > MOST_TOOLS:
        errors.append(f"{tools_at}: holds {len(tools)}; at most {MOST_TOOLS}")
    elif isinstance(tools, list | tuple) and all(isinstance(tool, Mapping) and tool for tool in tools):
        own_tools = list(tools)
        errors += value_errors(own_tools, tools_at)
    elif tools is not None:
        errors.append(
            f"{tools_at}={shown(tools)}: must be a list of JSON objects like "
            '{"type": "function", "function": {"name": ..., "parameters": ...}}'
        )
    if isinstance(kwargs, Mapping):
        own_kwargs = dict(kwargs)
        errors += [f"{kwargs_at}.{name}: no variable of a template" for name in kwargs if name in _RESERVED]
        errors += value_errors(own_kwargs, kwargs_at)
    elif kwargs is not None:
        errors.append(f"{kwargs_at}={shown(kwargs)}: must be a mapping, like {{enable_thinking: false}}")
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
