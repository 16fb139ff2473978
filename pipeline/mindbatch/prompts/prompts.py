"""Reads prompts (texts, token ids, conversations, files of them) into rows, and encodes them."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeGuard

from mindbatch.io.amounts import counted, today
from mindbatch.io.error_lines import shown
from mindbatch.io.errors import ConfigError, PromptError, is_panic
from mindbatch.io.regular_file import open_regular
from mindbatch.io.strict_json import JsonError, unicode_error
from mindbatch.prompts.messages import (
    NO_OPTIONS,
    ChatOptions,
    Message,
    chat_options,
    conversation_of,
)
from mindbatch.prompts.prompt_lines import DEFAULT_MAX_LINE_BYTES, Line, parse_json, text_lines
from mindbatch.prompts.tokenizer import Tokenizer

STANDARD_INPUT = "-"
JSON_LINES = (".jsonl", ".ndjson")
"""Suffixes of files whose lines are JSON."""
WITHOUT_CHAT = " has no effect without chat=true or messages; set chat=true or remove it"
_JSON_ROW = "a line must be a quoted text, a list of token ids or an object"
_MAX_REASONS = 5
MAX_ERRORS = 100_000
"""Maximum of invalid lines of a file, all of which are kept in memory."""
_IN_JSON = ("prompt", "messages", "conversations", "text")
"""Keys that may have the prompt of an object on such a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One row to run, with exactly one of text, token_ids and messages.

    key: the row's position among all rows, valid or not, from "0", so that the same prompts have the same
        keys and random numbers from the command line as from a file.
    source: the location of the row in its input, for messages.
    tools, chat_template_kwargs: variables of the chat template, with messages only.
    adapter: the LoRA adapter of the row; None is the default.
    date: the date of the chat template's clock, as YYYY-MM-DD; None is today.
    """

    key: str
    source: str
    text: str | None = None
    token_ids: list[int] | None = None
    messages: list[Message] | None = None
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    adapter: str | None = None
    date: str | None = None

    @property
    def content(self) -> str | list[int] | list[Message] | None:
        return next((part for part in (self.text, self.token_ids, self.messages) if part is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """A row that cannot be run, with all its errors."""

    key: str
    source: str
    reason: str

    @property
    def error(self) -> str:
        """The reason with the row's location, which errors of a chat already have: messages[0].role=..."""
        return self.reason if self.reason.startswith(self.source) else f"{self.source}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PromptRows:
    """The valid rows and the errors of the others, both in the order of the input."""

    prompts: list[Prompt] = field(default_factory=list)
    errors: list[RowError] = field(default_factory=list)

    @property
    def date(self) -> str | None:
        """The date of the chat templates of all rows, or None."""
        return next((prompt.date for prompt in self.prompts if prompt.date is not None), None)


_Read = Callable[..., dict[str, Any]]
"""`content_of` with the options of the call."""
_Source = Iterable[tuple[str, Callable[[], dict[str, Any]]]]
"""Yields the location of a row, and a function that returns its content or raises PromptError."""


def read_prompts(
    *,
    prompts: object = None,
    prompts_file: str | Path | None = None,
    messages: object = None,
    chat: bool = False,
    system: str | None = None,
    tools: object = None,
    chat_template_kwargs: object = None,
    date: str | None = None,
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
    stdin: BinaryIO | None = None,
) -> PromptRows:
    """Reads the rows of one source; an invalid row becomes a RowError.

    Args:
        prompts: a text, or a list of texts, lists of token ids and conversations.
        prompts_file: UTF-8 text with a prompt on each line, or JSON lines if its suffix is in JSON_LINES;
            "-" is standard input.
        messages: a conversation (a list of messages) or a list of conversations.
        chat: makes each text the user message of a conversation.
        system: the system message to put before the messages.
        tools, chat_template_kwargs: see transformers' apply_chat_template; tools may be the path of a JSON
            file.
        date: the date of the chat templates' clock, as YYYY-MM-DD; None is today.

    Raises:
        ConfigError: there is no source or more than one; it is not a list, is empty or cannot be read; no
            line of a file is valid, or more than MAX_ERRORS are not; or `system`, `tools` or
            `chat_template_kwargs` are invalid or without a chat.
    """
    errors = _source_errors({"prompts": prompts, "prompts_file": prompts_file, "messages": messages})
    chat_values: dict[str, Any] = {"system": system, TOOLS: tools, TEMPLATE_KWARGS: chat_template_kwargs}
    chat_values["date"] = date
    if not (chat or may_hold_chats(prompts, prompts_file, messages)):
        errors += [f"{name}{WITHOUT_CHAT}" for name, value in chat_values.items() if value is not None]
    options = chat_options(**{**chat_values, "date": date or today()}, errors=errors)
    read = partial(content_of, chat=chat, options=options)
    if prompts_file is not None:
        source_rows: _Source = _file_rows(prompts_file, max_line_bytes, stdin, read, options)
    elif prompts is not None:
        source_rows = ((source, partial(read, item)) for source, item in _prompt_items(prompts))
    else:
        source_rows = (
            (source, partial(conversation_of, item, source, options))
            for source, item in _conversation_items(messages)
        )
    rows = PromptRows()
    for position, (source, content) in enumerate(source_rows):
        key = str(position)
        try:
            rows.prompts.append(Prompt(key=key, source=source, **content()))
        except PromptError as error:
            rows.errors.append(RowError(key=key, source=source, reason="; ".join(error.lines)))
        if prompts_file is not None and len(rows.errors) > MAX_ERRORS:
            raise ConfigError(_too_many_errors(prompts_file, rows.errors[-1]))
    if prompts_file is not None and not rows.prompts:
        _refuse_useless(prompts_file, rows.errors)
    return rows


def _too_many_errors(path: str | Path, last: RowError) -> str:
    return (
        f"prompts_file={path}: more than {MAX_ERRORS:,} lines are invalid ({last.source}: {last.reason}); "
        "mindbatch batch allows more with data.max_errors"
    )


def _refuse_useless(path: str | Path, errors: Sequence[RowError]) -> NoReturn:
    """Raises a ConfigError that lists each reason once, since a wrong file may have thousands of lines."""
    sources: dict[str, str] = {}
    for error in errors:
        sources.setdefault(error.reason, error.source)
    reasons = [f"{source}: {reason}" for reason, source in sources.items()]
    summary = f"prompts_file={path}: none of its {counted(len(errors), 'line')} can be run"
    raise ConfigError([*reasons[:_MAX_REASONS], summary])


def may_hold_chats(prompts: object, prompts_file: str | Path | None, messages: object) -> bool:
    """True if some of the prompts may be conversations rather than texts."""
    if messages is not None or (prompts_file is not None and _is_json_lines(prompts_file)):
        return True
    return is_list(prompts) and any(map(is_conversation, prompts))


def _source_errors(sources: Mapping[str, object]) -> list[str]:
    sources_used = [name for name, value in sources.items() if value is not None]
    if len(sources_used) == 1:
        return []
    return [
        f"{' and '.join(sources_used) or 'no prompt'} given; exactly one of {', '.join(sources)} is needed"
    ]


def _object_content(row: Mapping[str, Any], read: _Read, options: ChatOptions) -> dict[str, Any]:
    """Reads the prompt of an object on a line of JSON; other keys are ignored."""
    names = [name for name in _IN_JSON if row.get(name) is not None]
    if len(names) > 1:
        raise PromptError(
            f"{' and '.join(names)}: only one of them can be the prompt; remove the others, or choose one "
            "with mindbatch batch data.prompt_column=NAME (data.messages_column)"
        )
    if not names:
        raise PromptError(
            f"found an object with {shown(list(row))}; must have one of {', '.join(_IN_JSON)}, or be a text "
            "or a list of token ids; mindbatch batch reads other columns (data.prompt_column, data.template)"
        )
    (name,) = names
    options = options.of_row(row.get(TOOLS), row.get(TEMPLATE_KWARGS), TOOLS, TEMPLATE_KWARGS)
    if name in ("prompt", "text"):
        return read(row[name], options=options)
    return conversation_of(row[name], name, options)


def _prompt_items(prompts: object) -> list[tuple[str, object]]:
    if isinstance(prompts, str):
        return [("prompts", prompts)]
    if not is_list(prompts):
        raise ConfigError(
            f"prompts={shown(prompts)}: must be a text, or a list of texts or of token id lists"
        )
    if not prompts:
        raise ConfigError("prompts=[]: empty; must have a prompt")
    if all(isinstance(item, int) for item in prompts):
        raise ConfigError(
            f"prompts={shown(list(prompts))}: write [[1, 2]] for a prompt of token ids, or quote texts"
        )
    return [(f"prompts[{i}]", item) for i, item in enumerate(prompts)]


def _conversation_items(messages: object) -> list[tuple[str, object]]:
    if isinstance(messages, Mapping):
        messages = [messages]
    if not is_list(messages):
        raise ConfigError(f"messages={shown(messages)}: must be a list of messages or a list of such lists")
    if not messages:
        raise ConfigError("messages=[]: empty; must have a message")
    if any(isinstance(item, Mapping) for item in messages) and not any(is_list(item) for item in messages):
        return [("messages", list(messages))]
    return [(f"messages[{i}]", item) for i, item in enumerate(messages)]


def _file_rows(
    path: str | Path,
    max_line_bytes: int,
    stdin: BinaryIO | None,
    read: Callable[..., dict[str, Any]],
    options: ChatOptions,
) -> _Source:
    name = "standard input" if str(path) == STANDARD_INPUT else str(path)
    is_empty, is_json = True, _is_json_lines(path)

    def content(line: Line) -> dict[str, Any]:
        if line.text is None:
            raise PromptError(line.error or "")
        value = _json_value(line.text) if is_json else line.text
        return _object_content(value, read, options) if isinstance(value, Mapping) else read(value)

    try:
        with _opened(path, stdin) as stream:
            for line in text_lines(stream, max_line_bytes):
                is_empty = False
                yield f"{name}:{line.number}", partial(content, line)
    except OSError as error:
        raise ConfigError(f"prompts_file={path}: cannot be read: {error.strerror or error}") from error
    if is_empty:
        raise ConfigError(f"prompts_file={path}: {name} is empty; must have a prompt on each line")


def _is_json_lines(path: str | Path) -> bool:
    return Path(path).suffix.lower() in JSON_LINES


def _json_value(text: str) -> Any:
    try:
        return parse_json(text)
    except JsonError as error:
        raise PromptError(f"{error}; {_JSON_ROW}") from error


def _opened(path: str | Path, stdin: BinaryIO | None) -> AbstractContextManager[BinaryIO]:
    if str(path) == STANDARD_INPUT:
        return nullcontext(stdin or sys.stdin.buffer)
    return open(open_regular(Path(path)), "rb")


NO_TOKENIZER = "the model's folder has no tokenizer; use lists of token ids, or model.tokenizer=FOLDER"


def refuse_chats(tokenizer: Tokenizer | None, setting: str) -> None:
    """Raises ConfigError if all prompts are chats and the model has no chat template.

    setting: the key that makes them chats, with its value.
    """
    if tokenizer is None:
        raise ConfigError(f"{setting}: {NO_TOKENIZER}")
    if not tokenizer.has_chat_template:
        raise ConfigError(
            f"{setting}: the model's tokenizer has no chat template; use texts as prompts, or "
            "model.tokenizer=FOLDER with a template"
        )


def token_ids_of(prompt: Prompt, tokenizer: Tokenizer | None, max_tokens: int | None = None) -> Sequence[int]:
    """Encodes the prompt; messages are rendered by the chat template.

    max_tokens: a text that is sure to have more is refused before encoding, which takes 300 times its bytes.

    Raises:
        PromptError: there is no tokenizer for a text or no chat template for messages, the template refused
            them, the text is far too long, or the tokenizer failed.
        ConfigError: the chat template timed out for several consecutive rows.
    """
    try:
        return _token_ids(prompt, tokenizer, max_tokens)
    except RecursionError as error:
        raise PromptError("the prompt is nested too deeply") from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise PromptError(f"the tokenizer failed: {' '.join(str(error).split())[:300]}") from error


def _token_ids(prompt: Prompt, tokenizer: Tokenizer | None, max_tokens: int | None) -> Sequence[int]:
    if prompt.token_ids is not None:
        return prompt.token_ids
    if tokenizer is None:
        raise PromptError(NO_TOKENIZER)
    if prompt.messages is not None:
        variables = {**(prompt.chat_template_kwargs or {}), "tools": prompt.tools}
        return tokenizer.encode_chat(
            prompt.messages, variables=variables, max_tokens=max_tokens, date=prompt.date
        )
    return tokenizer.encode(prompt.text or "", max_tokens=max_tokens)


TOOLS, TEMPLATE_KWARGS = "tools", "chat_template_kwargs"
"""Columns of a row for the chat template besides its messages."""
_PROMPT_COLUMNS = ("prompt", "messages", "conversations")


def content_of(value: object, *, chat: bool = False, options: ChatOptions = NO_OPTIONS) -> dict[str, Any]:
    """Returns the fields of a `Prompt`: text, token_ids, or messages with their options.

    A list of mappings is a conversation. `chat` makes a text the user message of a conversation.

    Raises:
        PromptError: one line per error; those of a conversation start with "prompt".
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
        raise PromptError("token ids cannot be a chat message; use a text, or remove chat=true")
    return {"token_ids": _checked_ids(value)}


def usual_name(row: Mapping[str, Any]) -> str | None:
    """Returns the default column of a row's prompt: the first of the usual names that is not null."""
    return next((name for name in _PROMPT_COLUMNS if row.get(name) is not None), None)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """True if the value is a sequence but not a text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def is_conversation(value: object) -> TypeGuard[Sequence[Any]]:
    """True if the value is a non-empty list of mappings only."""
    return is_list(value) and len(value) > 0 and all(isinstance(item, Mapping) for item in value)


def _checked_text(text: str) -> str:
    if not text:
        raise PromptError("the prompt is empty")
    if error := unicode_error(text):
        raise PromptError(f"the prompt {error}")
    return text


def _checked_ids(ids: Sequence[object]) -> list[int]:
    """Checks what needs no model; the engine checks ids against the vocabulary."""
    if not ids:
        raise PromptError("the prompt is empty: no token ids")
    if all(isinstance(item, str) for item in ids):
        raise PromptError(f"found a list of texts, {shown(list(ids))}; a prompt is one text")
    valid = [i for i in ids if isinstance(i, int) and not isinstance(i, bool) and i >= 0]
    if len(valid) < len(ids):
        position, invalid = next((n, i) for n, i in enumerate(ids) if type(i) is not int or i < 0)
        raise PromptError(f"token id {shown(invalid)} at position {position}: must be an integer from 0")
    return valid
