"""Owns what a chat template is given beside the messages: a system message, tools, variables of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindbatch.io.amounts import DAY_RULE, is_day
from mindbatch.io.errors import ConfigError, PromptError
from mindbatch.io.fault_lines import shown
from mindbatch.io.regular_file import read_regular
from mindbatch.io.strict_json import JsonFault, unicode_fault, value_faults
from mindbatch.prompts.messages import Message
from mindbatch.prompts.prompt_lines import parse_json, utf8_fault

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
            PromptError: a line for each fault, which begins with the name of the value.
        """
        own_tools, own_kwargs, faults = _checked(tools, kwargs, tools_at, kwargs_at)
        if faults:
            raise PromptError(faults)
        merged = {**(self.chat_template_kwargs or {}), **own_kwargs}
        return replace(self, tools=own_tools or self.tools, chat_template_kwargs=merged or None)

    def content(self, messages: list[Message]) -> dict[str, Any]:
        """A conversation as `Prompt` takes it, the system message before it."""
        before = [] if self.system is None else [{"role": "system", "content": self.system}]
        content: dict[str, Any] = {"messages": [*before, *messages]}
        names = ("tools", "chat_template_kwargs", "date")
        return content | {name: getattr(self, name) for name in names if getattr(self, name) is not None}


NO_OPTIONS = ChatOptions()


def chat_options(
    system: str | None = None,
    tools: object = None,
    chat_template_kwargs: object = None,
    date: str | None = None,
    *,
    prefix: str = "",
    faults: Sequence[str] = (),
) -> ChatOptions:
    """The options of a run. `tools` may be the path of a JSON file.

    prefix: goes before their names in fault lines. faults: those that were found already.

    Raises:
        ConfigError: a line for each fault.
    """
    faults = [*faults]
    if system is not None and (fault := unicode_fault(system) if system else "is empty; leave it out"):
        faults.append(f"{prefix}system {fault}")
    if date is not None and not is_day(date):
        faults.append(f"{prefix}date={shown(date)}: {DAY_RULE}")
    try:
        tool_list = _file_value(Path(tools)) if isinstance(tools, str | Path) else tools
    except PromptError as error:
        raise ConfigError([*faults, f"{prefix}tools={tools}: {error}"]) from error
    names = f"{prefix}tools", f"{prefix}chat_template_kwargs"
    own_tools, kwargs, more = _checked(tool_list, chat_template_kwargs, *names)
    if faults := faults + more:
        raise ConfigError(faults)
    return ChatOptions(system=system, tools=own_tools or None, chat_template_kwargs=kwargs or None, date=date)


def _checked(
    tools: object, kwargs: object, tools_at: str, kwargs_at: str
) -> tuple[list[Any], dict[str, Any], list[str]]:
    """Returns both in their plain form, empty where nothing is given, and a line for each fault."""
    own_tools: list[Any] = []
    own_kwargs: dict[str, Any] = {}
    faults = []
    if isinstance(tools, list | tuple) and all(isinstance(tool, Mapping) and tool for tool in tools):
        own_tools = list(tools)
        faults += value_faults(own_tools, tools_at)
    elif tools is not None:
        faults.append(
            f"{tools_at}={shown(tools)}: must be a list of JSON objects like "
            '{"type": "function", "function": {"name": ..., "parameters": ...}}'
        )
    if isinstance(kwargs, Mapping):
        own_kwargs = dict(kwargs)
        faults += [f"{kwargs_at}.{name}: no variable of a template" for name in kwargs if name in _RESERVED]
        faults += value_faults(own_kwargs, kwargs_at)
    elif kwargs is not None:
        faults.append(f"{kwargs_at}={shown(kwargs)}: must be a mapping, like {{enable_thinking: false}}")
    return own_tools, own_kwargs, faults


def _file_value(path: Path) -> Any:
    """Reads a JSON file. Raises PromptError."""
    try:
        return parse_json(read_regular(path, LARGEST_TOOLS_FILE).decode("utf-8-sig"))
    except OSError as error:
        raise PromptError(f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PromptError(utf8_fault(error)) from error
    except JsonFault as fault:
        raise PromptError(str(fault)) from fault
