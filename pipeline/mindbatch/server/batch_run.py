"""A batch as a run: the configuration of `mindbatch batch` for its file, checked line by line, and run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from copy import copy, deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from mindbatch.config.machine import parse_bytes
from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.dataset import Dataset
from mindbatch.dataset.rows import DataRow, RowFailure, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.io.fault_lines import did_you_mean, shown
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.loading.providers import OpenedFolder
from mindbatch.prompts.prompt_lines import EMPTY_LINE
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.batch_config import BatchOutputConfig, BatchTaskConfig
from mindbatch.run.generation import Generator
from mindbatch.run.identity import file_digest, fingerprint_fields
from mindbatch.run.job import BatchJob, OnStep, typed_command
from mindbatch.server.records import BatchRecord
from mindbatch.server.schema import ServeConfig

MOST_ERRORS = 1000
"""Errors of a file that are told one by one; the others are counted."""
_SECTIONS = ("model", "decoding", "lora", "parallel", "launch", "runtime")
_remembered = cache(file_digest)  # the weights are the same for all batches


def run_config(config: ServeConfig, data: Path, folder: Path) -> BatchTaskConfig:
    """The configuration with which `mindbatch batch` would run a file into a folder."""
    run = BatchTaskConfig(
        **{name: copy(getattr(config, name)) for name in _SECTIONS},
        data=DataConfig(path=str(data), format="openai", max_errors=None, date=config.server.date),
        output=BatchOutputConfig(
            dir=str(folder), message_format=config.server.message_format, model=config.server.model_name
        ),
        progress="none",
    )
    run.drawn = dict(config.drawn)
    own: dict[str, Any] = {
        "data": dataclasses.asdict(run.data),
        "output": dataclasses.asdict(run.output),
        "progress": run.progress,
    }
    own["output"]["columns"] = []
    written = OmegaConf.to_container(OmegaConf.create(config.unresolved_yaml), resolve=False)
    assert isinstance(written, dict)
    kept = {name: written[name] for name in _SECTIONS if name in written}
    kept["decoding"]["max_length"] = own_length = config.decoding.max_length
    run.unresolved_yaml = OmegaConf.to_yaml(OmegaConf.create(kept | own))
    run.resolved_settings = deepcopy({name: config.resolved_settings[name] for name in _SECTIONS}) | own
    run.resolved_settings["decoding"]["max_length"] = own_length
    return run


def line_errors(
    record: BatchRecord, config: ServeConfig, path: Path, is_over: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """Reads a batch's file; yields OpenAI's error object for each line that is no request of its endpoint.

    Counts the lines in the record. Keys that stand twice are found by the run itself.

    Raises:
        ConfigError: the file cannot be read.
    """
    data = DataConfig(path=str(path), format="openai")
    dataset = Dataset(path, data.format, parse_bytes(data.max_line_bytes))
    params = DecodingParams(**vars(config.decoding))
    maker = RowMaker(data, params, is_openai=True, lora=config.lora, model_name=config.name)
    for position, line in enumerate(dataset.records()):
        if is_over():
            return
        record.total = position + 1
        item = maker.make(position, line)
        if isinstance(item, RowFailure):
            if line.fault != EMPTY_LINE:  # an error of a row, but no reason to leave the others
                yield line_error("invalid_request", item.reason, item.line)
            continue
        if item.extra["endpoint"] != record.endpoint:
            message = f"url={item.extra['endpoint']}: the batch's is {record.endpoint}"
            yield line_error("mismatched_endpoint", message, item.line)
        for fault in server_faults(item, config):
            yield line_error("invalid_request", f"body.{fault}", item.line)


def server_faults(row: DataRow, config: ServeConfig) -> Iterator[str]:
    """Yields errors of a request that a run would take: another model, more choices than the server gives."""
    if fault := model_fault(row.extra.get("model"), config):
        yield fault
    if fault := count_fault(row, config):
        yield fault


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
    run: BatchTaskConfig,
    opened: OpenedFolder,
    tokenizer: Tokenizer | None,
    load: Callable[[RunFolder], AbstractContextManager[Generator]],
    on_step: OnStep,
) -> BatchJob:
    """The run of a batch; `load` is called where rows are left."""
    fields = fingerprint_fields(run, _remembered, opened)
    return BatchJob(run, fields, load, lambda: tokenizer, command=typed_command(), on_step=on_step)
