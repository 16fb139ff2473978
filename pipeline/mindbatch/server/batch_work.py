"""The life of a batch in a thread of its own: checked, run, finished; its failures are its own.

Its rows fill what requests from outside leave free in the engine.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindbatch.async_llm import AsyncLLM
from mindbatch.calls import Call, Delivery
from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.decoding import DecodingParams
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import RequestOutput
from mindbatch.engine.statistics import EngineStatistics
from mindbatch.io.errors import CheckpointError, ConfigError, MindBatchError
from mindbatch.io.fault_lines import did_you_mean, shown
from mindbatch.io.screen_text import say
from mindbatch.io.storage import StorageError
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.llm import LLM
from mindbatch.prompts.prompt_lines import EMPTY_LINE
from mindbatch.prompts.prompts import Prompt
from mindbatch.run.batch_config import BatchConfig, BatchOutputConfig, save_as_written
from mindbatch.run.generation import Tally
from mindbatch.run.identity import file_digest, fingerprint_fields
from mindbatch.run.index import RowCounts
from mindbatch.run.job import BatchJob, typed_command
from mindbatch.run.manifest import rows_of
from mindbatch.run.survey import Items
from mindbatch.server.records import BatchRecord, is_own
from mindbatch.server.schema import ServeConfig

if TYPE_CHECKING:
    from mindbatch.server.batches import Batches

MOST_ERRORS = 1000
"""Errors of a file that are told one by one; the others are counted."""
_MOST_TRIES = 3
"""Times that a batch is begun in one process of the server, where it is not the batch that fails."""
_SECONDS_UNTIL_ROOM = 60.0
"""A batch that cannot write waits so long before it tries again: somebody may make room on the disk."""
_SECTIONS = ("model", "decoding", "lora", "parallel", "launch", "runtime")
_remembered = cache(file_digest)  # the weights are the same for all batches
_SECONDS_BETWEEN_LOOKS = 0.1
"""A batch that waits for its rows looks so often whether it is to end."""
_ROWS_AT_ONCE = 256
NEVER_TRIED = {
    "cancelled": "the batch was cancelled before this request was done",
    "expired": "the completion window ended before this request was done",
}
Rows = Iterable[tuple[Prompt, DecodingParams]]


class Interrupted(MindBatchError):
    """The run of a batch is left: the server ends, and it goes on another time, or it has failed already."""


class BackgroundRows:
    """A `run.generation.Generator` over the server's model.

    The engine's thread computes; that of the batch waits: a request from outside would have to wait for a
    step of each that computes.

    share: unfinished rows that the batch may have in the engine. ending: why the rows are to end, or None;
    those that are left when the batch is cancelled, or its time is over, are errors that say so.
    """

    def __init__(
        self, llm: LLM, engine: AsyncLLM, share: Callable[[], int], ending: Callable[[], str | None]
    ) -> None:
        self._llm, self._engine, self._share, self._ending = llm, engine, share, ending
        self.kernels = llm.kernels
        self._tokens = dict.fromkeys(("prompt_tokens", "cached_prompt_tokens", "generated_tokens"), 0)

    @property
    def statistics(self) -> EngineStatistics:
        """The engine's load, and the tokens of these rows."""
        return replace(self._llm.statistics, **self._tokens)

    def take_notes(self) -> list[str]:
        return []

    def steps(self, rows: Rows) -> Generator[StepResult, None, None]:
        """Runs the rows.

        Raises:
            Interrupted: the server ends.
            MindBatchError: the engine has failed.
        """
        source, unfinished, inbox = iter(rows), dict[str, None](), _WaitingInbox()
        with closing(self._llm.call(inbox, in_background=True)) as call:
            while self._ending() is None:
                taken = [*islice(source, max(0, self._share() - call.num_unfinished))]
                unfinished |= dict.fromkeys(row.key for row, _ in taken)
                finished = self._add(call, taken) if taken else []
                if not (finished or call.num_unfinished):
                    return
                if not (finished or inbox):
                    inbox.filled.wait(_SECONDS_BETWEEN_LOOKS)
                inbox.filled.clear()
                finished += call.next().finished if inbox else []
                for output in finished:
                    del unfinished[output.key]
                    self._count(output)
                yield StepResult([], finished)
        yield from self._left(chain(unfinished, (row.key for row, _ in source)))

    def _add(self, call: Call, rows: Rows) -> list[RequestOutput]:
        """Puts rows to the engine; returns those that it refuses."""
        requests = [self._llm.request(row, params) for row, params in rows]
        return self._engine.ask(lambda llm: call.add(requests)).result()

    def _left(self, keys: Iterator[str]) -> Iterator[StepResult]:
        stage = self._ending() or ""
        if stage not in NEVER_TRIED:
            raise Interrupted("the server ends")
        while some := [*islice(keys, _ROWS_AT_ONCE)]:
            yield StepResult([], [RequestOutput.failed(key, NEVER_TRIED[stage], stage=stage) for key in some])

    def _count(self, output: RequestOutput) -> None:
        self._tokens["prompt_tokens"] += len(output.prompt_token_ids)
        self._tokens["cached_prompt_tokens"] += output.num_cached_tokens
        self._tokens["generated_tokens"] += sum(len(completion.token_ids) for completion in output.outputs)


class _WaitingInbox(deque[Delivery]):
    def __init__(self) -> None:
        super().__init__()
        self.filled = threading.Event()

    def append(self, delivery: Delivery, /) -> None:
        super().append(delivery)
        self.filled.set()


class BatchWork:
    """One batch that runs."""

    def __init__(self, record: BatchRecord, batches: Batches) -> None:
        self.record, self._batches = record, batches
        self._data = batches.files.content(record.input_file_id)
        self._folder = batches.records.path(record.id)  # of its run
        self.has_rows = False  # in the engine
        self._before = RowCounts(0, 0, 0)  # of earlier sessions
        self._ending: str | None = None
        self._woken = threading.Event()
        if record.status == "cancelling":
            self.end("cancelled")
        elif record.expires_at <= time.time():
            self.end("expired")

    def end(self, reason: str) -> None:
        """Has it end: "cancelled", "expired" or, to go on another time, "interrupted"."""
        self._ending = self._ending or reason
        self._woken.set()

    def run(self) -> None:
        """Runs it to its end, or until the server ends."""
        tries = 0
        while tries < _MOST_TRIES:
            try:
                self._try()
                return
            except Interrupted:
                return
            except StorageError as error:
                say(f"{self.record.id}: waits: {'; '.join(error.faults)}")
                self._woken.clear()
                self._woken.wait(_SECONDS_UNTIL_ROOM)
                if self._ending == "interrupted":
                    return
            except Exception as error:
                if self._batches.engine.is_closed:
                    return
                tries += 1
                lines = [error] if isinstance(error, MindBatchError) else traceback.format_exception(error)
                text = " ".join(map(str, lines))
                say(f"{self.record.id}: ended ({tries} of {_MOST_TRIES} times): {text}")
        with suppress(StorageError):
            self._fail([line_error("server_error", "the server could not run it; its log says why")])

    def _try(self) -> None:
        try:
            if self.record.has_ended:  # which could not be written down
                self._batches.records.keep(self.record)
            elif is_own(self._data):
                self._generate()
            else:
                raise ConfigError(f"{self.record.input_file_id}: its content is gone")
        except (ConfigError, CheckpointError) as error:
            self._fail([line_error("invalid_batch", fault) for fault in error.faults[:MOST_ERRORS]])

    def _checked(self, items: Items) -> Items:
        """Passes the lines of the file on to the run, and counts them; a batch with wrong ones has failed."""
        record, num_errors = self.record, 0
        errors: list[dict[str, Any]] = []
        is_new = record.status == "validating"
        for number, item in enumerate(items, start=1):
            if self._ending == "interrupted":
                raise Interrupted("the server ends")
            if is_new and self._ending is None:
                record.total = number
                wrong = [*line_errors(item, record.endpoint, self._batches.config)]
                num_errors += len(wrong)
                errors += wrong[: MOST_ERRORS - len(errors)]
            yield item
        if num_errors > len(errors):
            more = num_errors - len(errors)
            errors.append(line_error("more_errors", f"and {more} more lines with errors"))
        if errors or not (record.total or self._ending):
            self._fail(errors or [line_error("empty_file", "the file holds no request")])
            raise Interrupted("the batch has failed")
        with self._batches.changing:
            if record.status == "validating":
                record.enter("in_progress")
                self._batches.records.keep(record)

    def _generate(self) -> None:
        batches, record = self._batches, self.record
        config = run_config(batches.config, self._data, self._folder)
        BatchJob(
            config,
            fingerprint_fields(config, _remembered, batches.opened),
            self._rows,
            lambda: batches.llm.tokenizer,
            command=typed_command(),
            on_step=self._on_step,
            check=self._checked,
        ).run()
        counts = rows_of(RunFolder(self._folder))
        with batches.changing:
            record.total, record.completed, record.failed = counts.total, counts.done, counts.failed
            record.finalizing_at = int(time.time())
            ended = self._ending if self._ending in ("cancelled", "expired") else None
            record.enter(ended or "completed")
            batches.records.keep(record)

    @contextmanager
    def _rows(self, folder: RunFolder) -> Iterator[BackgroundRows]:
        batches = self._batches
        self._before, self.has_rows = rows_of(folder), True
        try:
            yield BackgroundRows(batches.llm, batches.engine, batches.share, lambda: self._ending)
        finally:
            self.has_rows = False

    def _on_step(self, tally: Tally) -> None:
        self.record.completed = self._before.done + tally.done
        self.record.failed = self._before.failed + tally.failed

    def _fail(self, errors: list[dict[str, Any]]) -> None:
        with self._batches.changing:
            self.record.errors = errors
            self.record.enter("failed")
            self._batches.records.keep(self.record)


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
    return {"code": code, "message": message, "param": None, "line": line}
