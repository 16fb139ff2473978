"""The keys of a dataset: which rows, how a row becomes a prompt, and what these may be together."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.config.error_log import shown
from mindbatch.config.machine import parse_bytes
from mindbatch.config.paths import (
    LONGEST_SHOWN,
    STANDARD_INPUT,
    input_file_error,
    resolved,
    resolved_tools,
    rows_error,
)
from mindbatch.config.schema import excludes, needs, option
from mindbatch.fields import kinds as kind
from mindbatch.fields.field import Need
from mindbatch.io.amounts import DAY_RULE, is_day
from mindbatch.remote.address import is_remote, read_error

SOURCES = ("prompt_column", "messages_column", "template", "template_file")
COLUMNS = (
    "key_column",
    "prompt_column",
    "messages_column",
    "decoding_column",
    "tools_column",
    "chat_template_kwargs_column",
    "adapter_column",
)
_COLUMN = (excludes("data.format", "text", "openai"),)
_REQUEST = (excludes("data.format", "openai"),)
_CHAT = (
    Need(lambda config: config.data.chat or not _never_chats(config.data), "data.chat", "set data.chat=true"),
)
LARGEST_ROW = 1 << 30
MAX_ERRORS = 100_000
"""More than anybody looks through; in a few KB a packed file may have a thousand times as many."""
NO_DATA = "data.path: must be given: a file, folder or pattern of the rows, or - for standard input"


@dataclass
class DataConfig:
    """Which rows, and how a row becomes a prompt."""

    path: Any = option(
        None,
        "file, folder or pattern (data/*.jsonl) of the rows, address (hf://datasets/ORG/NAME/SPLIT, s3://, "
        "gs://), or a list of them; - is standard input",
        kind.paths(),
        is_path=True,
    )
    format: str = option(
        "auto",
        "format of the files; auto: by their names (.jsonl, .csv.gz, ...)",
        kind.choice("auto", "jsonl", "json", "csv", "tsv", "text", "parquet", "openai"),
    )
    key_column: str | None = option(
        None, "column with a unique name of each row; null: the row's number, from 0", needs=_COLUMN
    )
    prompt_column: str | None = option(
        None, "column of the prompt; null without another source: prompt, or else messages", needs=_COLUMN
    )
    messages_column: str | None = option(
        None, "column of a chat like [{role: user, content: Hi}]", needs=_COLUMN
    )
    template: str | None = option(
        None, "prompt with the columns filled in, by jinja2: Q: {{ question }}", needs=_REQUEST
    )
    template_file: str | None = option(None, "file with the template", is_path=True, needs=_REQUEST)
    chat: bool = option(
        False,
        "send each prompt as a user's message through the chat template",
        needs=(*_REQUEST, excludes("data.messages_column")),
    )
    system: str | None = option(
        None, "system message before each prompt; needs data.chat=true or messages", needs=_CHAT
    )
    tools: Any = option(
        None,
        "tools that the chat template gets",
        kind.described("list of JSON objects, JSON file that holds it, or null"),
        is_path=True,
        needs=_CHAT,
    )
    tools_column: str | None = option(
        None, "column of a row's own tools, a list as in data.tools", needs=_COLUMN + _CHAT
    )
    chat_template_kwargs: Any = option(
        None,
        "further variables of the chat template, like {enable_thinking: false}",
        kind.described("mapping or null"),
        needs=_CHAT,
    )
    chat_template_kwargs_column: str | None = option(
        None,
        "column of a row's own variables of the chat template; they override those of the run",
        needs=_COLUMN + _CHAT,
    )
    date: str | None = option(
        None,
        "day that the chat template writes, as YYYY-MM-DD; null: the day on which the run began",
        needs=_CHAT,
    )
    decoding_column: str | None = option(
        None, "column of a row's own decoding parameters, like {temperature: 0.7}", needs=_COLUMN
    )
    adapter_column: str | None = option(
        None,
        "column with the name of a row's own adapter, one of lora.adapters; null there: lora.default",
        needs=(*_COLUMN, needs("lora.adapters")),
    )
    limit: int | None = option(None, "largest number of rows; null: all", kind.count(1))
    skip: int = option(0, "number of rows to skip at the beginning", kind.count())
    shuffle_seed: int | None = option(
        None, "shuffle the rows with this seed; null: keep their order", kind.count()
    )
    filter_keys: Any = option(
        None,
        "run only the rows with these keys",
        kind.described("list of keys, file with a key on each line, or null"),
        is_path=True,
    )
    max_errors: int | None = option(
        None,
        "bad rows that are allowed with exit code 0; one more ends the run; null: "
        f"{MAX_ERRORS:,}, with exit code 1",
        kind.count(),
    )
    max_line_bytes: str = option("10MiB", "largest row that is read; a larger one is an error of that row")

    @property
    def name(self) -> str:
        """Names the dataset after its files, without suffixes."""
        paths = [self.path] if isinstance(self.path, str) else self.path or ()
        return "+".join(Path(path).name.partition(".")[0] for path in paths)

    @property
    def error_limit(self) -> int:
        """Maximum number of rows that may be errors; one more ends the run."""
        return MAX_ERRORS if self.max_errors is None else self.max_errors

    def is_failed_by(self, num_errors: int) -> bool:
        """True if a finished run with so many row errors has failed."""
        return num_errors > (self.max_errors or 0)


def resolve_data(data: DataConfig, errors: list[str], no_data: str = NO_DATA) -> None:
    """Resolves `shipped:` and ~ in the paths; appends errors to `errors`.

    no_data: the error if data.path is missing.
    """
    if data.path is None:
        errors.append(no_data)
    if isinstance(data.path, str):
        data.path = _resolved_rows(data.path, errors)
    elif isinstance(data.path, list | tuple) and all(isinstance(path, str) for path in data.path):
        data.path = tuple(_resolved_rows(path, errors) for path in data.path)
        if STANDARD_INPUT in data.path:
            errors.append("data.path: standard input (-) cannot be in a list; give it alone")
    resolve_prompt_files(data, errors)
    if isinstance(data.filter_keys, str):
        error_of = input_file_error("a key on each line")
        data.filter_keys = resolved("data.filter_keys", data.filter_keys, error_of, errors)


def _resolved_rows(path: str, errors: list[str]) -> str | None:
    if is_remote(path):
        if problem := read_error(path):
            errors.append(f"data.path={shown(path, LONGEST_SHOWN)}: {problem}")
        return path
    return path if path == STANDARD_INPUT else resolved("data.path", path, rows_error, errors)


def resolve_prompt_files(data: DataConfig, errors: list[str]) -> None:
    """Resolves the paths of the files from which prompts are made: the template and the tools."""
    error_of = input_file_error("the template")
    data.template_file = resolved("data.template_file", data.template_file, error_of, errors)
    data.tools = resolved_tools("data.tools", data.tools, errors)


def data_errors(data: DataConfig) -> Iterator[str]:
    """Yields the errors of the values, except those of paths."""
    for name in (*COLUMNS, "template"):
        if getattr(data, name) == "":
            yield f"data.{name}: must not be empty"
    if data.template_file is not None and data.template is not None and len(_sources(data)) == 2:
        yield "data.template, data.template_file: only one of these can be given"
    elif len(_sources(data)) > 1:
        yield f"{', '.join(_sources(data))}: a prompt comes from only one of these"
    yield from date_errors(data)
    yield from _filter_errors(data.filter_keys)
    yield from _size_errors(data.max_line_bytes)


def date_errors(data: DataConfig) -> Iterator[str]:
    if data.date is not None and not is_day(data.date):
        yield f"data.date={shown(data.date)}: {DAY_RULE}"


def _sources(data: DataConfig) -> list[str]:
    return [f"data.{name}" for name in SOURCES if getattr(data, name) is not None]


def _filter_errors(keys: Any) -> Iterator[str]:
    """Yields errors of a list of keys; a text is the path of a file, checked with the other paths."""
    if keys is None or isinstance(keys, str):
        return
    hint = "a list of keys, like [7, q-12], or a file with a key on each line"
    if not isinstance(keys, list):
        yield f"data.filter_keys={shown(keys)}: must be {hint}"
    elif not keys:
        yield "data.filter_keys=[]: leaves no row; null takes all"
    else:
        bad = [key for key in keys if isinstance(key, bool) or not isinstance(key, str | int) or key == ""]
        if bad:
            yield f"data.filter_keys: {shown(bad[0])}: a key is a text or a whole number; quote a text"


def _size_errors(text: str) -> Iterator[str]:
    try:
        if parse_bytes(text) > LARGEST_ROW:
            yield f"data.max_line_bytes={shown(text)}: must be at most 1GiB, for a row is read as a whole"
    except ValueError as error:
        yield f"data.max_line_bytes={shown(text)}: {error}"


def always_chats(data: DataConfig) -> str | None:
    """Returns the key and value by which every row is a chat; None if a row may be none."""
    if data.messages_column is not None:
        return f"data.messages_column={data.messages_column}"
    return "data.chat=true" if data.chat else None


def idle_with_openai(data: DataConfig) -> Iterator[str]:
    for name in (*COLUMNS, "template", "template_file", "chat"):
        if (value := getattr(data, name)) not in (None, False):
            effect = "has no effect on OpenAI's requests, which say it themselves; remove it"
            yield f"data.{name}={shown(value)}: {effect}"


def _never_chats(data: DataConfig) -> bool:
    """True if no row can be a chat by itself; a column may hold chats as well as texts."""
    return data.format == "text" or data.template is not None or data.template_file is not None
