"""Reads the columns of a row: its key, its prompt and its own decoding parameters, validated."""

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.records import ColumnError, Record, RowDraft, column, is_request, missing_column
from mindbatch.dataset.template import DataTemplate
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.params import FILTERS
from mindbatch.decoding.params import PARAMETERS as DECODING
from mindbatch.decoding.token_kinds import RANDOM
from mindbatch.io.error_lines import did_you_mean, shown, unknown_adapter
from mindbatch.io.errors import ConfigError, PromptError
from mindbatch.io.strict_json import unicode_error
from mindbatch.prompts.messages import NO_OPTIONS, ChatOptions, conversation_of
from mindbatch.prompts.prompts import (
    TEMPLATE_KWARGS,
    TOOLS,
    content_of,
    is_conversation,
    usual_name,
)

PROMPT, MESSAGES = "prompt", "messages"
LONGEST_KEY = 10_000
"""Characters of a row's key."""

_LARGEST_KEY = 2**64
_NO_CHAT = " has no effect on a prompt that is no chat; set data.chat=true or remove it"


@dataclass(frozen=True)
class ColumnRows:
    """Reads rows by the options of `data`. template: data.template, or None. options: those of every chat.

    adapters: the names of adapters that rows may have.
    """

    data: DataConfig
    template: DataTemplate | None
    options: ChatOptions
    adapters: Collection[str]

    def read(self, position: int, record: Record, draft: RowDraft) -> None:
        """Fills in the draft of the row at a position of the dataset. Raises ConfigError: the template ran
        out of time for several rows in a row."""
        if self.data.key_column is None:
            draft.key = str(position)
        for read in (self._read_key, self._read_decoding, self._read_adapter, self._read_content):
            try:
                read(record, draft)
            except ColumnError as error:
                draft.row_errors += error.lines
            except PromptError as error:
                draft.prompt_errors += error.lines

    def _read_key(self, record: Record, draft: RowDraft) -> None:
        name = self.data.key_column
        if name is None:
            return
        value = column(record, name, "data.key_column")
        if error := key_error(value):
            raise ColumnError(f"{name}{error}")
        draft.key = str(value)

    def _read_decoding(self, record: Record, draft: RowDraft) -> None:
        name = self.data.decoding_column
        if name is None or _lacks(record, name):
            return
        cell = from_text(column(record, name, "data.decoding_column"))
        if cell is None or cell == "":
            return
        if not isinstance(cell, Mapping):
            allowed = "must be a mapping of decoding parameters, like {temperature: 0.7}, or null"
            raise ColumnError(f"{name}={shown(cell)}: {allowed}")
        draft.row_errors += unknown_parameters(cell, name)
        # Null is what Parquet has where a row says nothing.
        draft.decoding = {key: cell[key] for key in PARAMETERS if cell.get(key) is not None}
        draft.shown_as = {key: f"{name}.{key}" for key in draft.decoding}

    def _read_adapter(self, record: Record, draft: RowDraft) -> None:
        name = self.data.adapter_column
        if name is None or _lacks(record, name):
            return
        cell = column(record, name, "data.adapter_column")
        if cell is None or cell == "":
            return
        if not isinstance(cell, str) or cell not in self.adapters:
            raise ColumnError(f"{name}: {unknown_adapter(cell, self.adapters)}")
        draft.adapter = cell

    def _read_content(self, record: Record, draft: RowDraft) -> None:
        data, template = self.data, self.template
        if template is not None:
            text = template.render(record, draft.key)
            draft.content = self._prompt(text, template.source.subject, record)
        elif data.messages_column is not None:
            value = column(record, data.messages_column, "data.messages_column")
            draft.content = self._messages(value, data.messages_column, record)
        elif data.prompt_column is not None:
            value = column(record, data.prompt_column, "data.prompt_column")
            draft.content = self._prompt(value, data.prompt_column, record)
        else:
            draft.content = self._usual(record)

    def _usual(self, record: Record) -> dict[str, Any]:
        """Reads the default column: prompt, or else messages or conversations."""
        columns = record.columns or {}
        name = usual_name(columns)
        if name not in (None, PROMPT):
            return self._messages(columns[name], name, record)
        if PROMPT not in columns:
            line = missing_column(PROMPT, record)
            if is_request(columns):
                raise ColumnError(f"{line}; as a request of OpenAI's batch files it needs data.format=openai")
            first = next((name for name, value in columns.items() if isinstance(value, str)), "question")
            raise ColumnError(
                f"{line}; name the prompt with data.prompt_column or data.template, for example "
                f"data.prompt_column={first if first.isidentifier() else 'question'}"
            )
        return self._prompt(columns[PROMPT], PROMPT, record)

    def _messages(self, value: object, name: str, record: Record) -> dict[str, Any]:
        content = from_text(record.as_written(value))
        return conversation_of(
            [content] if isinstance(content, Mapping) else content, name, self._of_row(record)
        )

    def _prompt(self, value: object, name: str, record: Record) -> dict[str, Any]:
        if is_conversation(value):
            return conversation_of(record.as_written(value), name, self._of_row(record))
        options = self._of_row(record, is_text=True) if self.data.chat else self.options
        content = text_or_ids(value, name, chat=self.data.chat, options=options)
        refuse_idle_options(content, options)
        return content

    def _of_row(self, record: Record, *, is_text: bool = False) -> ChatOptions:
        """Reads the options of this row's chat from the columns named for that, or from those that are
        usual beside messages, but not beside a text."""
        data = self.data
        is_usual = self.template is None and data.messages_column is None and data.prompt_column is None
        usual = (TOOLS, TEMPLATE_KWARGS) if is_usual and not is_text else (None, None)
        tools_at = data.tools_column or usual[0]
        kwargs_at = data.chat_template_kwargs_column or usual[1]
        tools, kwargs = _own_value(tools_at, record), _own_value(kwargs_at, record)
        if tools is None and kwargs is None:
            return self.options
        return self.options.of_row(tools, kwargs, str(tools_at), str(kwargs_at))


def _own_value(name: str | None, record: Record) -> object:
    """Reads a column that a row may lack; None where there is nothing."""
    if name is not None and name in record.unusable:
        raise ColumnError(missing_column(name, record))
    return None if name is None else from_text(record.as_written((record.columns or {}).get(name) or None))


def text_or_ids(
    value: object, name: str, *, chat: bool = False, options: ChatOptions = NO_OPTIONS
) -> dict[str, Any]:
    """Reads a prompt as `content_of`; each problem line begins with the name of what holds the value."""
    try:
        return content_of(value, chat=chat, options=options)
    except PromptError as error:
        raise PromptError([f"{name}: {problem}" for problem in error.lines]) from error


def refuse_idle_options(content: Mapping[str, Any], options: ChatOptions) -> None:
    """Raises ColumnError if chat options are set for a prompt that is no chat."""
    if MESSAGES not in content and options != NO_OPTIONS:
        names = (name for name, value in asdict(options).items() if value is not None)
        raise ColumnError([f"data.{name}{_NO_CHAT}" for name in names])


def key_error(value: object) -> str | None:
    """Explains why this value cannot name a row, to be put after the name of its column; None if it can."""
    if isinstance(value, str):
        error = unicode_error(value) if value else "is empty"
        if len(value) > LONGEST_KEY:
            error = f"has {len(value):,} characters; at most {LONGEST_KEY:,} are allowed"
        return f": the key {error}" if error else None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST_KEY:
        return None
    return f"={shown(value)}: a key must be a text or a whole number"


def _lacks(record: Record, name: str) -> bool:
    """True if a row has no such column, which is as null: rows of JSON leave out what they do not have."""
    return name not in (record.columns or {}) and name not in record.unusable


def from_text(value: object) -> object:
    """Parses a text where a list or mapping is wanted, for files that know no others: CSV, TSV."""
    if not isinstance(value, str):
        return value
    try:
        parsed: object = orjson.loads(value)
    except ValueError:
        return value
    return parsed


PARAMETERS = tuple(name for name, declared in DECODING.items() if declared.in_config)
"""Those that data can hold: no function."""
LARGEST_BYTES = 1 << 20
"""Most bytes of a row's decoding parameters as JSON."""
_MAX_KEPT_BYTES = 4 << 20
"""Bytes of JSON of all known sets of decoding parameters; in memory they take many times as much."""
_OWN_NAME = re.compile(r"\bdecoding\.(\w+)")


def unknown_parameters(names: Mapping[str, Any], where: str) -> list[str]:
    return [
        f"{where}.{name}: no decoding parameter{did_you_mean(name, PARAMETERS)}"
        if isinstance(name, str)
        else f"{where}: {shown(name)} is no decoding parameter"
        for name in names
        if name not in PARAMETERS
    ]


class OverrideRules:
    """Checks overrides together with the run's parameters `base`, which apply where a row says nothing."""

    def __init__(self, base: DecodingParams) -> None:
        self._base = base
        self._known: dict[bytes, tuple[dict[str, Any], tuple[str, ...]]] = {}
        self._known_bytes = 0

    def check(
        self, decoding: Mapping[str, Any], shown_as: Mapping[str, str]
    ) -> tuple[dict[str, Any], list[str]]:
        """Returns the overrides in the one form that equal ones have, and a line for each problem.

        decoding: by parameter, all of them known. shown_as: how the row calls them; others are the run's.
        """
        try:
            known = orjson.dumps(sorted(decoding.items()))  # within a schema the order of keys counts
        except TypeError as error:
            return {}, [f"the row's decoding parameters are no plain JSON ({error})"]
        if len(known) > LARGEST_BYTES:
            return {}, [f"the row's decoding parameters take {len(known)} bytes; at most {LARGEST_BYTES}"]
        if known not in self._known:
            self._known_bytes += len(known)
            if self._known_bytes > _MAX_KEPT_BYTES:
                self._known.clear()
                self._known_bytes = len(known)
            self._known[known] = self._validated(decoding)
        overrides, errors = self._known[known]
        return dict(overrides), [_as_given(problem, shown_as) for problem in errors]

    def _validated(self, decoding: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        if decoding.get("seed") == RANDOM:
            return {}, ("decoding.seed=random: is for all rows of a run; a row gives a number",)
        if decoding.get("pooling") is not None:  # the row wants no text, and nothing that the run says of it
            defaults = {name: DECODING[name].default for name in PARAMETERS}
            idle = {name: value for name, value in defaults.items() if getattr(self._base, name) != value}
            decoding = {**idle, **decoding}
        if decoding.get("temperature") == 0 and self._base.do_sample:
            # The row wants the likeliest tokens: what the run samples among is not its concern.
            decoding = {**{name: DECODING[name].default for name in FILTERS}, **decoding}
        try:
            params = replace(self._base, **decoding)
        except ConfigError as error:
            return {}, error.lines
        return {name: _as_json(getattr(params, name)) for name in sorted(decoding)}, ()


def _as_json(value: Any) -> Any:
    """Returns the value as it comes back from JSON."""
    return [_as_json(item) for item in value] if isinstance(value, tuple) else value


def _as_given(error: str, shown_as: Mapping[str, str]) -> str:
    return _OWN_NAME.sub(lambda match: shown_as.get(match[1], match[0]), error)
