"""Owns turning what a user gives to `generate` (text, token ids, a file, messages) into rows to run."""

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from mindbatch.data.messages import Message, shown
from mindbatch.data.prompt_content import content_of, conversation_of, is_list, system_fault
from mindbatch.data.prompt_lines import DEFAULT_MAX_LINE_BYTES, text_lines
from mindbatch.errors import ConfigError, PromptError
from mindbatch.regular_file import open_regular

STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One row to run: exactly one of text, token_ids and messages is given.

    `key` is the row's position among all rows, good or bad, from "0": the same prompts give the same keys,
    and so the same random numbers, from the command line as from a file. `source` says where the row stood.
    """

    key: str
    source: str
    text: str | None = None
    token_ids: list[int] | None = None
    messages: list[Message] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """One row that cannot be run: its key, its line (from 1; None outside files) and all its faults."""

    key: str
    source: str
    line: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class PromptRows:
    """The rows that can run and those that cannot, each in the order given."""

    prompts: list[Prompt] = field(default_factory=list)
    errors: list[RowError] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Found:
    """A row as it was given; `fault` if reading it failed already."""

    source: str
    value: object
    line: int | None = None
    fault: str | None = None


def read_prompts(
    *,
    prompts: object = None,
    prompts_file: str | Path | None = None,
    messages: object = None,
    chat: bool = False,
    system: str | None = None,
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
    stdin: BinaryIO | None = None,
) -> PromptRows:
    """The rows of the one source given.

    prompts: a text, or a list of texts, lists of token ids and conversations. prompts_file: UTF-8 text, a
    prompt a line; "-" is standard input. messages: one conversation (a list of messages) or a list of them.
    `chat` makes each text the one user message of a conversation; `system` goes before it, or before given
    messages.

    A bad row becomes a RowError and the others go on.

    Raises:
        ConfigError: no source or several, a source that is no list, has no row or cannot be read, `system`
            without a chat.
    """
    _check_usage(prompts, prompts_file, messages, chat, system)
    if prompts_file is not None:
        found = _file_rows(prompts_file, max_line_bytes, stdin)
    elif prompts is not None:
        found = _given_prompts(prompts)
    else:
        found = _given_conversations(messages)
    rows = PromptRows()
    for position, row in enumerate(found):
        _add(rows, str(position), row, chat=chat, system=system, is_messages=messages is not None)
    return rows


def _check_usage(
    prompts: object, prompts_file: object, messages: object, chat: bool, system: str | None
) -> None:
    sources = {"prompts": prompts, "prompts_file": prompts_file, "messages": messages}
    given = [name for name, value in sources.items() if value is not None]
    faults = []
    if len(given) != 1:
        faults.append(
            f"{' and '.join(given) or 'no prompt'} given; exactly one of {', '.join(sources)} is needed"
        )
    if system is not None and not chat and messages is None:
        faults.append("system has no effect without chat=true or messages; set chat=true or remove it")
    if system is not None and (fault := system_fault(system)):
        faults.append(f"system {fault}")
    if faults:
        raise ConfigError(faults)


def _add(
    rows: PromptRows, key: str, row: _Found, *, chat: bool, system: str | None, is_messages: bool
) -> None:
    if row.fault is None:
        try:
            content = (
                conversation_of(row.value, row.source, system)
                if is_messages
                else content_of(row.value, chat=chat, system=system)
            )
        except PromptError as error:
            row = _Found(row.source, row.value, row.line, "; ".join(error.faults))
        else:
            rows.prompts.append(Prompt(key=key, source=row.source, **content))
            return
    rows.errors.append(RowError(key=key, source=row.source, line=row.line, reason=row.fault or ""))


def _given_prompts(prompts: object) -> list[_Found]:
    if isinstance(prompts, str):
        return [_Found("prompts", prompts)]
    if not is_list(prompts):
        raise ConfigError(
            f"prompts={shown(prompts)}: must be a text, or a list of texts or of token id lists"
        )
    if not prompts:
        raise ConfigError("prompts=[]: holds no prompt")
    if all(isinstance(item, int) for item in prompts):
        raise ConfigError(
            f"prompts={shown(list(prompts))}: write [[1, 2]] for a prompt of token ids, or quote texts"
        )
    return [_Found(f"prompts[{i}]", item) for i, item in enumerate(prompts)]


def _given_conversations(messages: object) -> list[_Found]:
    if not is_list(messages):
        raise ConfigError(f"messages={shown(messages)}: must be a list of messages or a list of such lists")
    if not messages:
        raise ConfigError("messages=[]: holds no message")
    if any(isinstance(item, Mapping) for item in messages) and not any(is_list(item) for item in messages):
        return [_Found("messages", list(messages))]
    return [_Found(f"messages[{i}]", item) for i, item in enumerate(messages)]


def _file_rows(path: str | Path, max_line_bytes: int, stdin: BinaryIO | None) -> list[_Found]:
    name = "standard input" if str(path) == STANDARD_INPUT else str(path)
    try:
        with _opened(path, stdin) as stream:
            lines = list(text_lines(stream, max_line_bytes))
    except OSError as error:
        raise ConfigError(f"prompts_file={path}: cannot be read: {error.strerror or error}") from error
    if not lines:
        raise ConfigError(f"prompts_file={path}: {name} is empty; a prompt a line is needed")
    return [_Found(f"{name}:{line.number}", line.text, line.number, line.fault) for line in lines]


def _opened(path: str | Path, stdin: BinaryIO | None) -> AbstractContextManager[BinaryIO]:
    if str(path) == STANDARD_INPUT:
        return nullcontext(stdin or sys.stdin.buffer)
    return open(open_regular(Path(path)), "rb")
