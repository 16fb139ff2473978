"""Owns data.template: a prompt written once, filled in with the columns of each row."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.records import ColumnError, Record, missing_column
from mindbatch.io.errors import ConfigError, PromptError
from mindbatch.io.regular_file import first_bytes
from mindbatch.io.strict_json import unicode_error
from mindbatch.prompts.chat import ChatLimits, ChatProcess, TemplateLimit

ALL_COLUMNS = "row"
"""The name under which a template finds all columns, for those whose names are no names in jinja2."""
_NO_NAMES = "names no column, so every row would be the same; write {{ question }} for the column question"
_NO_ATTRIBUTE = re.compile(r"'dict object' has no attribute '(.+)'")
LONGEST_TEMPLATE = 1 << 20
"""Bytes of a template file."""


@dataclass(frozen=True)
class TemplateSource:
    """A template's text, and the option that gave it, which begins every error line about it."""

    text: str
    subject: str


def template_source(data: DataConfig) -> TemplateSource | None:
    """Returns the template of data.template or data.template_file; None when neither is given. Raises
    ConfigError: the file cannot be read, is too long or is not UTF-8."""
    if data.template is not None:
        return TemplateSource(data.template, "data.template")
    if data.template_file is None:
        return None
    return TemplateSource(_file_text(Path(data.template_file)), "data.template_file")


def _file_text(path: Path) -> str:
    try:
        content = first_bytes(path, LONGEST_TEMPLATE + 1)
        if len(content) <= LONGEST_TEMPLATE:
            return content.decode("utf-8-sig")
        reason = f"is longer than {LONGEST_TEMPLATE} bytes; a template holds the prompt of one row"
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError as error:
        reason = f"not valid UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start}"
    raise ConfigError(f"data.template_file={path}: {reason}")


class DataTemplate:
    """A jinja2 template over columns, rendered in a sandboxed child process bounded in time and memory.

    The text of a column is only ever text: what looks like a template in it is not rendered.
    """

    def __init__(
        self,
        source: TemplateSource,
        limits: ChatLimits | None = None,
        is_finished: Callable[[str], bool] = lambda key: False,
    ) -> None:
        """is_finished: of the key of a row: its result is there, so it was rendered within the limits.

        Raises ConfigError with one line: it cannot be compiled, or is the same for all rows.
        """
        self.source = source
        self._is_finished = is_finished
        self._process = ChatProcess(limits, subject=source.subject, kind="data")
        try:
            self._names = self._process.names(source.text)
        except PromptError as error:
            self.close()
            raise ConfigError(error.lines) from error
        if not self._names:
            self.close()
            raise ConfigError(f"{source.subject}: {_NO_NAMES}")

    def render(self, record: Record, key: str | None) -> str:
        """Returns the prompt of one row.

        Raises:
            ColumnError: a line for each column that the template needed.
            PromptError: one line: the template failed, refused the row or went over a limit.
            ConfigError: it ran out of time for several rows in a row.
        """
        variables = self._variables(record.columns or {})
        try:
            text = self._process.render(
                self.source.text, variables, lambda: key is not None and self._is_finished(key)
            )
        except TemplateLimit:
            raise
        except PromptError as error:
            raise self._missing(str(error), record) or error from None
        if problem := unicode_error(text):
            raise PromptError(f"{self.source.subject}: its output {problem}")
        return text

    def close(self) -> None:
        """Ends the child process; a later `render` starts it again."""
        self._process.close()

    def _variables(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Selects the columns that the template uses: the others need not travel."""
        variables = {name: columns[name] for name in self._names if name in columns}
        if ALL_COLUMNS in self._names and ALL_COLUMNS not in columns:
            variables[ALL_COLUMNS] = columns
        return variables

    def _missing(self, reason: str, record: Record) -> ColumnError | None:
        """Returns the error in terms of columns, where an undefined name is one that the row might have
        had."""
        columns = record.columns or {}
        absent = [name for name in self._names if name not in columns and f"'{name}' is undefined" in reason]
        if ALL_COLUMNS in self._names and ALL_COLUMNS not in columns:
            absent += [name for name in _NO_ATTRIBUTE.findall(reason) if name not in columns]
        lines = [f"{self.source.subject}: {missing_column(name, record)}" for name in absent]
        return ColumnError(lines) if lines else None
