"""A batch as a run: the configuration of `mindbatch batch` for its file, checked line by line, and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.io.fault_lines import did_you_mean, shown
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.loading.providers import OpenedFolder
from mindbatch.prompts.prompt_lines import EMPTY_LINE
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.batch_config import BatchConfig, BatchOutputConfig, save_as_written
from mindbatch.run.generation import Generator
from mindbatch.run.identity import file_digest, fingerprint_fields
from mindbatch.run.job import BatchJob, OnStep, typed_command
from mindbatch.run.survey import Items
from mindbatch.server.schema import ServeConfig

MOST_ERRORS = 1000
"""Errors of a file that are told one by one; the others are counted."""
_SECTIONS = ("model", "decoding", "lora", "parallel", "launch", "runtime")
_remembered = cache(file_digest)  # the weights are the same for all batches


def run_config(config: ServeConfig, data: Path, folder: Path) -> BatchConfig:
    """The configuration with which `mindbatch batch` would run a file into a folder."""
    run = BatchConfig(
        **{name: copy(getattr(config, name)) for name in _SECTIONS},
        data=DataConfig(path=str(data), format="openai", max_errors=None),
        output=BatchOutputConfig(
            dir=str(folder), message_format=config.server.message_format, model=config.server.model_name
        ),
        progress="none",
    )
    run.drawn = dict(config.drawn)
    save_as_written(run, config.resolved_settings)
    return run


def line_errors(item: DataRow | RowFailure, endpoint: str, config: ServeConfig) -> Iterator[dict[str, Any]]:
    """Yields OpenAI's error objects for a line that is no request of its batch's endpoint, or not of this
    server: for another model, or more choices than it gives."""
    if isinstance(item, RowFailure):
        if item.reason != EMPTY_LINE:  # an error of a row, but no reason to leave the others
            yield line_error("invalid_request", item.reason, item.line)
        return
    if item.extra["endpoint"] != endpoint:
        message = f"url={item.extra['endpoint']}: the batch's is {endpoint}"
        yield line_error("mismatched_endpoint", message, item.line)
    for fault in (model_fault(item.extra.get("model"), config), count_fault(item, config)):
        if fault is not None:
            yield line_error("invalid_request", f"body.{fault}", item.line)


def model_fault(model: str | None, config: ServeConfig) -> str | None:
    """Explains why a request cannot have a model of that name; None if it can."""
    names = [config.name, *config.lora.names]
    if model is None or model in names:
        return None
    return f"model={shown(model)}: not served here; there are {', '.join(names)}{did_you_mean(model, names)}"


def count_fault(row: DataRow, config: ServeConfig) -> str | None:
    """Explains why a request cannot have so many choices; None if it can."""
    if (count := row.overrides.get("num_return_sequences", 1)) > config.server.max_n:
        return f"n={count}: at most {config.server.max_n} choices"
    return None


def line_error(code: str, message: str, line: int | None = None) -> dict[str, Any]:
    """An error of a batch, as OpenAI has it."""
    return {"code": code, "message": message, "param": None, "line": line}


def batch_job(
    run: BatchConfig,
    opened: OpenedFolder,
    tokenizer: Tokenizer | None,
    load: Callable[[RunFolder], AbstractContextManager[Generator]],
    on_step: OnStep,
    check: Callable[[Items], Items],
) -> BatchJob:
    """The run of a batch; `load` is called where rows are left."""
    fields = fingerprint_fields(run, _remembered, opened)
    command = typed_command()
    return BatchJob(run, fields, load, lambda: tokenizer, command=command, on_step=on_step, check=check)
