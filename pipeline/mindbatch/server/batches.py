"""Runs each batch in a folder of its own; resumes, expires, cancels and removes batches."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from mindbatch.async_llm import AsyncLLM
from mindbatch.config.saved import WrittenSettings
from mindbatch.dataset.data_config import DataConfig
from mindbatch.fields.kinds import LARGEST_COUNT
from mindbatch.io.errors import CheckpointError, ConfigError, MindBatchError, passing_error
from mindbatch.io.screen_text import say
from mindbatch.io.storage import Storage, StorageError, make_folder
from mindbatch.ledger.run_folder import RunFolder, RunLock
from mindbatch.ledger.run_record import RunRecord
from mindbatch.llm import LLM
from mindbatch.loading.providers import OpenedFolder
from mindbatch.run.batch_config import BatchConfig, BatchOutputConfig
from mindbatch.run.generation import Tally
from mindbatch.run.identity import file_digest, fingerprint_fields
from mindbatch.run.index import RowCounts
from mindbatch.run.job import BatchJob, typed_command
from mindbatch.run.manifest import rows_of
from mindbatch.run.survey import Items
from mindbatch.server.batch_rows import BackgroundRows, Interrupted, line_error, line_errors
from mindbatch.server.finished_rows import write_finished
from mindbatch.server.records import (
    ERRORS,
    RESULTS,
    BatchRecord,
    BatchRecords,
    FileRecord,
    Files,
    bounded_errors,
    is_own,
    new_id,
    own_size,
    result_of,
)
from mindbatch.server.requests import ApiError
from mindbatch.server.schema import ServeConfig

MAX_ERRORS = 1000
"""Errors of a file that are listed; the others are counted."""
_MAX_TRIES = 3
"""Attempts to run a batch in one process of the server if the errors are not the batch's own."""
_REMOVED_AT_ONCE = 20
_RETRY_SECONDS = 60.0
"""Pause of a batch after a full disk or a lack of descriptors."""
_SECTIONS = ("model", "decoding", "lora", "parallel", "launch", "runtime")
_remembered = cache(file_digest)  # the weights are the same for all batches


class Batches:
    """Owns the files and batches of one folder, and the threads that run the batches.

    The methods are thread-safe. Raises ConfigError if another server uses the folder.
    """

    def __init__(self, config: ServeConfig, opened: OpenedFolder, llm: LLM, engine: AsyncLLM) -> None:
        folder = Path(config.server.batches_dir or "").absolute()
        storage = Storage()
        make_folder(folder)
        self._lock = RunLock(RunFolder(folder), storage)
        self.files = Files(folder / "files", storage, config.server.max_files)
        self.records = BatchRecords(folder / "batches", storage)
        self.config, self.opened, self.llm, self.engine = config, opened, llm, engine
        self.changing = threading.RLock()  # held while records change
        self._running: dict[str, BatchWork] = {}
        self._is_ending = False
        self._pool = ThreadPoolExecutor(config.server.max_batches, "batch")

    def start(self) -> None:
        """Resumes the batches that have not ended."""
        for record in self.records.all():
            if not record.has_ended:
                self._submit(record)

    def stop(self) -> None:
        """Ends the threads; finished rows are committed, and the next start resumes the batches."""
        self.interrupt()
        self._pool.shutdown(cancel_futures=True)
        self._lock.close()

    def interrupt(self) -> None:
        """Makes the batches end; the next start resumes them, and runs those created from now on."""
        with self.changing:
            self._is_ending = True
            for running in self._running.values():
                running.end("interrupted")

    def create(
        self, input_file_id: str, endpoint: str, window: str, seconds: int, metadata: dict[str, str] | None
    ) -> BatchRecord:
        """Creates and submits a batch, which checks the lines of its file first. Raises StorageError."""
        if len(self._running) >= self.config.server.max_files:
            raise ApiError(
                429,
                f"{len(self._running)} batches have not ended; no more are accepted at a time",
                "too_many_batches",
            )
        created = int(time.time())
        record = BatchRecord(
            new_id("batch_"), endpoint, input_file_id, window, created, created + seconds, metadata
        )
        with self.changing:
            if self.files.find(input_file_id) is None:
                raise ApiError(
                    404, f"file {input_file_id}: does not exist", "file_not_found", "input_file_id"
                )
            self.records.keep(record)
            self._submit(record)
        return record

    def cancel(self, record: BatchRecord) -> None:
        """Makes a batch end; rows that finish until then have their results."""
        with self.changing:
            if record.has_ended or record.status == "cancelling":
                return
            record.enter("cancelling")
            self.records.keep(record)
            if running := self._running.get(record.id):
                running.end("cancelled")

    def by_status(self) -> dict[str, int]:
        return dict(Counter(record.status for record in self.records.all()))

    def user_of(self, file_id: str) -> str | None:
        """Returns the id of an unfinished batch of the file, or None."""
        unfinished = (record for record in self.records.all() if not record.has_ended)
        return next((record.id for record in unfinished if record.input_file_id == file_id), None)

    def all_files(self) -> list[FileRecord]:
        """Returns the uploaded files and the results of batches, in the order of their creation."""
        names = [record.result_id(kind) for record in self.records.all() for kind in (RESULTS, ERRORS)]
        written = [file[0] for name in names if name and (file := self.file(name))]
        return sorted([*self.files.all(), *written], key=lambda file: file.created_at)

    def file(self, name: str) -> tuple[FileRecord, Path] | None:
        """Returns an uploaded file or a result of a batch, with its path."""
        if (record := self.files.find(name)) is not None:
            return (record, path) if is_own(path := self.files.content(name)) else None
        batch_id, kind = result_of(name)
        batch = self.records.find(batch_id)
        if batch is None or batch.result_id(kind) != name:
            return None
        folder = RunFolder(self.records.path(batch.id))
        path = folder.results("openai") if kind == RESULTS else folder.errors
        if (size := own_size(path)) is None:
            return None
        ended = batch.completed_at or batch.cancelled_at or batch.expired_at or batch.created_at
        return FileRecord(name, f"{batch.id}_{kind}.jsonl", size, ended, "batch_output"), path

    def delete_file(self, name: str) -> None:
        """Removes a file. Raises ApiError while a batch needs it."""
        batch_id, kind = result_of(name)
        if not kind:
            with self.changing:
                if (user := self.user_of(name)) is not None:
                    message = f"file {name}: used by {user}; cancel that batch first"
                    raise ApiError(409, message, "file_in_use")
                self.files.delete(name)
            return
        with self.changing:
            batch, file = self.records.find(batch_id), self.file(name)
            if batch is None or file is None:
                return
            batch.removed.append(kind)
            self.records.keep(batch)
        file[1].unlink(missing_ok=True)

    def end_expired(self) -> None:
        with self.changing:
            for running in self._running.values():
                if running.record.expires_at <= time.time():
                    running.end("expired")

    def remove_old(self) -> None:
        """Removes files and ended batches older than server.keep_days, until the server ends."""
        if (days := self.config.server.keep_days) is None:
            return
        time_limit = time.time() - days * 86400
        used = {record.input_file_id for record in self.records.all() if not record.has_ended}
        files = [file.id for file in self.files.all() if file.created_at < time_limit and file.id not in used]
        ended = [
            record.id for record in self.records.all() if record.has_ended and record.created_at < time_limit
        ]
        for records, names in ((self.files, files), (self.records, ended)):
            for first in range(0, len(names), _REMOVED_AT_ONCE):
                with self.changing:  # a batch that is created meanwhile has its file, or gets an error
                    if self._is_ending:
                        return
                    users = {work.record.input_file_id for work in self._running.values()}
                    chunk = names[first : first + _REMOVED_AT_ONCE]
                    records.delete(*(name for name in chunk if name not in users))

    def share(self) -> int:
        """Returns the number of rows that a batch may have in the engine: twice its share of a step."""
        running = [work.has_rows for work in [*self._running.values()]]
        return max(2, 2 * self.llm.settings.batch_size // max(1, sum(running)))

    def _submit(self, record: BatchRecord) -> None:
        if self._is_ending:
            return
        work = self._running[record.id] = BatchWork(record, self)
        self._pool.submit(self._run, work)

    def _run(self, work: BatchWork) -> None:
        try:
            work.run()
        finally:
            with self.changing:
                del self._running[work.record.id]


class BatchWork:
    """Checks, runs and finishes a batch in a thread of its own."""

    def __init__(self, record: BatchRecord, batches: Batches) -> None:
        self.record, self._batches = record, batches
        self._data = batches.files.content(record.input_file_id)
        self._folder = batches.records.path(record.id)  # of its run
        self.has_rows = False  # in the engine
        self._before = RowCounts(0, 0, 0)  # of earlier sessions
        self._ending: str | None = None
        self._wake_up = threading.Event()
        if record.status == "cancelling":
            self.end("cancelled")
        elif record.expires_at <= time.time():
            self.end("expired")

    def end(self, reason: str) -> None:
        """Makes the batch end as "cancelled", "expired" or, to be resumed later, "interrupted"."""
        self._ending = self._ending or reason
        self._wake_up.set()

    def run(self) -> None:
        """Runs the batch until it or the server ends."""
        tries = 0
        while tries <= _MAX_TRIES:
            try:
                if tries < _MAX_TRIES:
                    self._try()
                else:
                    self._fail(
                        [line_error("server_error", "the server could not run the batch; see its log")]
                    )
                return
            except Interrupted:
                return
            except Exception as error:
                if self._batches.engine.is_closed:
                    return
                if isinstance(error, StorageError) or passing_error(error) is not None:
                    self._wait_for_resources(error)
                    if self._ending == "interrupted":
                        return
                    continue
                tries += 1
                lines = [error] if isinstance(error, MindBatchError) else traceback.format_exception(error)
                text = " ".join(map(str, lines))
                say(f"{self.record.id}: ended ({tries} of {_MAX_TRIES} times): {text}")

    def _wait_for_resources(self, error: Exception) -> None:
        """Waits _RETRY_SECONDS, in which space or descriptors may become free."""
        reason = "; ".join(error.lines) if isinstance(error, MindBatchError) else str(error)
        say(f"{self.record.id}: waits: {reason}")
        self._wake_up.clear()
        if self._ending != "interrupted":  # set before the event was cleared
            self._wake_up.wait(_RETRY_SECONDS)

    def _try(self) -> None:
        try:
            if self.record.has_ended:  # but its record could not be written
                self._batches.records.keep(self.record)
            elif is_own(self._data):
                self._generate()
            else:
                raise ConfigError(f"{self.record.input_file_id}: its content does not exist")
        except (ConfigError, CheckpointError) as error:
            if passing_error(error) is not None:
                raise
            self._fail([line_error("invalid_batch", problem) for problem in error.lines[:MAX_ERRORS]])

    def _checked(self, items: Items) -> Items:
        """Passes the rows of the file to the run and counts them; the batch fails if a line is invalid."""
        record, num_errors = self.record, 0
        errors: list[dict[str, Any]] = []
        is_new = record.status == "validating"
        for number, item in enumerate(items, start=1):
            if self._ending == "interrupted":
                raise Interrupted("the server ends")
            if is_new and self._ending is None:
                record.total = number
                found_errors = [*line_errors(item, record.endpoint, self._batches.config)]
                num_errors += len(found_errors)
                errors += bounded_errors(found_errors[: MAX_ERRORS - len(errors)], 0)
            yield item
        if errors or not (record.total or self._ending):
            self._fail(errors or [line_error("empty_file", "the file has no request")], num_errors)
            raise Interrupted("the batch has failed")
        with self._batches.changing:
            if record.status == "validating":
                record.enter("in_progress")
                self._batches.records.keep(record)

    def _generate(self) -> None:
        batches, record = self._batches, self.record
        config = run_config(batches.config, self._data, self._folder)
        self._run(config, fingerprint_fields(config, _remembered, batches.opened))
        with batches.changing:
            record.finalizing_at = int(time.time())
            ended = self._ending if self._ending in ("cancelled", "expired") else None
            record.enter(ended or "completed")
            batches.records.keep(record)

    def _run(self, config: BatchConfig, fields: Mapping[str, Any]) -> None:
        """Runs the unfinished rows, writes and counts the results. fields: see `BatchJob`."""
        batches = self._batches
        BatchJob(
            config,
            fields,
            self._rows,
            lambda: batches.llm.tokenizer,
            command=typed_command(),
            on_step=self._on_step,
            check=self._checked,
        ).run()
        self._count(rows_of(RunFolder(self._folder)))

    def _count(self, counts: RowCounts) -> None:
        record = self.record
        record.total, record.completed, record.failed = counts.total, counts.done, counts.failed

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

    def _fail(self, errors: list[dict[str, Any]], count: int = 0) -> None:
        """Ends the batch as failed, with the results of its finished rows. count: number of all errors."""
        self._keep_finished()
        with self._batches.changing:
            self.record.errors = bounded_errors(errors, count or len(errors))
            self.record.enter("failed")
            self._batches.records.keep(self.record)

    def _keep_finished(self) -> None:
        """Writes the results of finished rows as for a cancelled batch; from the ledger alone if the file has
        changed."""
        folder = RunFolder(self._folder)
        if not folder.holds_a_run or folder.is_without_rows:
            return
        config = run_config(self._batches.config, self._data, self._folder)
        self.end("failed")
        try:
            self._run(config, RunRecord.read(folder).fields)
        except Interrupted:
            raise
        except Exception as error:
            if passing_error(error) is not None:
                raise
            total = self.record.total
            counts = write_finished(folder, config, self._batches.llm.tokenizer, self.record.endpoint)
            self._count(replace(counts, total=max(total, counts.total)))


def run_config(config: ServeConfig, data: Path, folder: Path) -> BatchConfig:
    """Returns the configuration with which `mindbatch batch` would run a file into a folder."""
    run = BatchConfig(
        **{name: copy(getattr(config, name)) for name in _SECTIONS},
        data=DataConfig(path=str(data), format="openai", max_errors=LARGEST_COUNT),
        output=BatchOutputConfig(
            dir=str(folder), message_format=config.server.message_format, model=config.server.model_name
        ),
        progress="none",
    )
    run.drawn = dict(config.drawn)
    run.written = WrittenSettings.of_derived(run, config.written)
    return run
