"""Makes rows that can be run from the records of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal, Protocol

import orjson

from mindbatch.config.lora_schema import LoraConfig, idle_errors
from mindbatch.dataset.column_rows import ColumnRows, OverrideRules
from mindbatch.dataset.data_config import DataConfig, idle_with_openai
from mindbatch.dataset.openai_request import OpenAIRequests
from mindbatch.dataset.records import OptionalColumns, Record, RowDraft, missing_column
from mindbatch.dataset.template import DataTemplate, template_source
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.folder_embeddings import FolderEmbeddings
from mindbatch.message_formats.parser import MessageFormat
from mindbatch.prompts.chat import ChatLimits
from mindbatch.prompts.messages import chat_options
from mindbatch.prompts.prompts import Prompt

RowStage = Literal["read", "row", "prompt", "cancelled", "expired", "failed"]

_DIGEST_BYTES = 16
_LONGEST_ERROR = 500
_MAX_ERRORS = 20
_MAY_LACK = ("decoding_column", "tools_column", "chat_template_kwargs_column", "adapter_column")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRow:
    """A row that can be run.

    source, line: its file, and the line where it begins, from 1.
    content: exactly one of text, token_ids and messages, as `Prompt` takes them.
    overrides: the row's own decoding parameters, validated with those of the run.
    adapter: the name of the adapter that computes it, its own or the run's default; None is the base.
    extra: further fields of its result: the endpoint and the model name of an OpenAI request, else the
        requested columns.
    """

    key: str
    source: str
    line: int
    content: dict[str, Any]
    overrides: dict[str, Any] = field(default_factory=dict)
    adapter: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """BLAKE2b-128 in hex of the row's content, parameters and adapter, which determine its result."""
        content = orjson.dumps([self.content, self.overrides, self.adapter], option=orjson.OPT_SORT_KEYS)
        return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()

    @property
    def location(self) -> str:
        return f"{self.source}:{self.line}"

    def prompt(self, date: str | None = None) -> Prompt:
        return Prompt(key=self.key, source=self.location, adapter=self.adapter, date=date, **self.content)

    def params(self, base: DecodingParams) -> DecodingParams:
        return replace(base, **self.overrides) if self.overrides else base

    @classmethod
    def from_json(cls, data: bytes) -> DataRow:
        """Reads a row that `orjson.dumps` wrote."""
        return cls(**orjson.loads(data))


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row that cannot be run, with all of its errors in one line.

    key: the row's own key; None if it could not be read.
    stage: "read" if the bytes of the file are no row, "row" if its columns have errors, "prompt" if its
        prompt has errors or could not be finished; "cancelled", "expired" or "failed" if the end of the job
        left it out.
    """

    key: str | None
    source: str
    line: int
    stage: RowStage
    reason: str

    @property
    def location(self) -> str:
        return f"{self.source}:{self.line}"


class _Reader(Protocol):
    def read(self, position: int, record: Record, draft: RowDraft) -> None: ...


class RowMaker:
    """Makes rows from records. `close` ends the template's process, if there is one."""

    def __init__(
        self,
        data: DataConfig,
        decoding: DecodingParams,
        is_openai: bool,
        template_limits: ChatLimits | None = None,
        columns: Sequence[str] = (),
        is_finished: Callable[[str], bool] = lambda key: False,
        lora: LoraConfig | None = None,
        model_name: str | None = None,
        message_format: MessageFormat | None = None,
        embeddings: FolderEmbeddings | None = None,
    ) -> None:
        """Checks the options of `data` for all rows.

        decoding: the run's parameters.
        is_openai: the records are requests in OpenAI's batch format.
        columns: columns that are copied to the results.
        is_finished: returns True for the key of a row that has a result already.
        lora: the adapters that rows may name.
        model_name: the name by which requests select the model without an adapter.
        message_format: the syntax in which the model writes answers of chats.
        embeddings: the settings for embeddings in the model's folder, which `decoding` overrides.

        Raises:
            ConfigError: a template that cannot be used, a key of `data` without effect, a bad system message.
        """
        self._embeddings, self._pooling = embeddings or FolderEmbeddings(), decoding.pooling
        self._embeds = False
        idle = _idle_columns(data, columns) if is_openai else _idle_adapters(data, lora)
        options = chat_options(
            data.system, data.tools, data.chat_template_kwargs, prefix="data.", errors=idle
        )
        source = template_source(data)
        self._template = None if source is None else DataTemplate(source, template_limits, is_finished)
        adapters = {} if lora is None else dict.fromkeys(lora.names)
        self._default_adapter = None if lora is None else lora.row_default
        self._reader: _Reader = (
            OpenAIRequests(
                options,
                adapters,
                None if lora and lora.is_merged else model_name,
                message_format,
                decoding,
                self._embeddings.with_pooling(decoding.pooling),
            )
            if is_openai
            else ColumnRows(data, self._template, options, adapters)
        )
        self._overrides = OverrideRules(decoding)
        self.has_offered_tools = False
        """A row that was made offers tools, of which a call is not forced."""
        self._numbered = not is_openai and data.key_column is None
        self._columns = columns
        self._optional = OptionalColumns(
            [(f"data.{name}", getattr(data, name)) for name in _MAY_LACK]
            + [("output.columns", name) for name in columns]
        )

    def make(self, position: int, record: Record) -> DataRow | RowFailure:
        """Makes the row of the record at a position of the dataset, or its failure.

        Raises:
            ConfigError: data.template ran out of time for several rows in a row.
        """
        if record.columns is None:
            key = str(position) if self._numbered else None
            reason = _joined([record.error or "cannot be read"])
            return RowFailure(key, record.file, record.line, "read", reason)
        self._optional.look_in(record)
        draft = RowDraft()
        overrides = self._filled(position, record, draft)
        if draft.row_errors or draft.prompt_errors or draft.key is None:
            stage: RowStage = "row" if draft.row_errors else "prompt"
            reason = _joined(draft.row_errors + draft.prompt_errors)
            return RowFailure(draft.key, record.file, record.line, stage, reason)
        if draft.content.get("tools") and not draft.extra.get("call_is_forced"):
            self.has_offered_tools = True
        self._embeds = self._embeds or overrides.get("pooling", self._pooling) is not None
        return DataRow(
            key=draft.key,
            source=record.file,
            line=record.line,
            content=draft.content,
            overrides=overrides,
            adapter=None if draft.asks_base else draft.adapter or self._default_adapter,
            extra=draft.extra,
        )

    def missing_columns(self) -> list[str]:
        """Returns a line for each requested column that no row so far had."""
        return self._optional.errors()

    def notes(self) -> list[str]:
        """Returns a line about embeddings if rows so far request them and the model's folder configures
        them."""
        return self._embeddings.notes(self._pooling) if self._embeds else []

    def close(self) -> None:
        if self._template is not None:
            self._template.close()

    def _carried(self, record: Record, draft: RowDraft) -> dict[str, Any]:
        """Returns the columns for the results; null where the row has none."""
        bad = [name for name in self._columns if name in record.unusable]
        draft.row_errors += [f"output.columns: {missing_column(name, record)}" for name in bad]
        return {name: (record.columns or {}).get(name) for name in self._columns}

    def _filled(self, position: int, record: Record, draft: RowDraft) -> dict[str, Any]:
        """Fills in the draft; returns its decoding parameters in their normal form."""
        overrides: dict[str, Any] = {}
        try:
            self._reader.read(position, record, draft)
            if self._columns:
                draft.extra["columns"] = self._carried(record, draft)
            if draft.decoding:
                overrides, errors = self._overrides.check(draft.decoding, draft.shown_as)
                draft.row_errors += errors
            if "text" not in draft.content:
                orjson.dumps([draft.content, draft.extra])
        except TypeError as error:
            draft.prompt_errors.append(f"cannot be kept as JSON: {error}")
        return overrides


def _idle_columns(data: DataConfig, columns: Sequence[str]) -> list[str]:
    columns_errors = ["output.columns: OpenAI's requests have no columns; remove it"] * bool(columns)
    return [*idle_with_openai(data), *columns_errors]


def _idle_adapters(data: DataConfig, lora: LoraConfig | None) -> list[str]:
    if lora is None or data.adapter_column is not None:
        return []
    return [*idle_errors(lora, "data.adapter_column=COLUMN or ")]


def _joined(errors: Sequence[str]) -> str:
    lines = [_bounded(error) for error in errors[:_MAX_ERRORS]]
    more = [f"and {len(errors) - _MAX_ERRORS} more"] if len(errors) > _MAX_ERRORS else []
    return "; ".join(lines + more)


def _bounded(error: str) -> str:
    cut = error if len(error) <= _LONGEST_ERROR else f"{error[: _LONGEST_ERROR - 3]}..."
    return "".join(c if c.isprintable() else " " for c in cut)
