"""Batches: each is a run in a folder of its own, resumed when the server starts, ended or cancelled."""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mindbatch.async_llm import AsyncLLM
from mindbatch.io.errors import CheckpointError, ConfigError, MindBatchError
from mindbatch.io.screen_text import say
from mindbatch.io.storage import Storage, StorageError, make_folder
from mindbatch.ledger.lock import RunLock
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.loading.providers import OpenedFolder
from mindbatch.run.generation import Generator
from mindbatch.run.manifest import rows_of
from mindbatch.server.background import BackgroundRows, Interrupted, Places
from mindbatch.server.batch_run import MOST_ERRORS, batch_job, line_error, line_errors, run_config
from mindbatch.server.files import Files
from mindbatch.server.records import RESULTS, BatchRecord, FileRecord, Records, new_id, result_of
from mindbatch.server.schema import ServeConfig

_MOST_TRIES = 3
"""Times that a batch is begun in one process of the server, where it is not the batch that fails."""


@dataclass
class _Running:
    """A batch that runs. before: rows that earlier sessions have done, and that have failed."""

    record: BatchRecord
    rows: BackgroundRows | None = None
    before: tuple[int, int] = (0, 0)
    ending: str | None = None

    def end(self, reason: str) -> None:
        """Has it end: "cancelled", "expired" or "interrupted"."""
        self.ending = self.ending or reason
        if self.rows is not None:
            self.rows.end(reason)

    def count(self) -> None:
        """Brings the record's counts up to now."""
        if self.rows is not None:
            self.record.completed = self.before[0] + self.rows.num_done
            self.record.failed = self.before[1] + self.rows.num_failed


class Batches:
    """The files and batches of one folder, which is this server's alone; and the threads that run them.

    The methods may be called by any thread. Raises ConfigError when another server has the folder.
    """

    def __init__(self, config: ServeConfig, opened: OpenedFolder, engine: AsyncLLM, batch_size: int) -> None:
        folder = Path(config.server.batches_dir or "").absolute()
        self._config, self._opened, self._engine = config, opened, engine
        self._storage = Storage()
        make_folder(folder)
        self._lock = RunLock(RunFolder(folder), self._storage)
        self._lock.__enter__()
        self.files = Files(folder / "files", self._storage, config.server.max_files)
        self._folder = folder / "batches"
        make_folder(self._folder)
        self._records = Records(self._folder, self._storage)
        self._batches = self._records.read_all(BatchRecord)
        self._running: dict[str, _Running] = {}
        self._changing = threading.RLock()
        self._places = Places(batch_size)
        self._kernels = ""
        self._pool = ThreadPoolExecutor(config.server.max_batches, "batch")

    def start(self, kernels: str) -> None:
        """Goes on with the batches that have not ended."""
        self._kernels = kernels
        for record in self._batches.values():
            if not record.has_ended:
                self._submit(record)

    def stop(self) -> None:
        """Ends the threads; what was finished is committed, and the batches go on another time."""
        self.interrupt()
        self._pool.shutdown(cancel_futures=True)
        self._lock.release()

    def interrupt(self) -> None:
        """Has the batches end, to go on another time."""
        with self._changing:
            for running in self._running.values():
                running.end("interrupted")

    def create(
        self, input_file_id: str, endpoint: str, window: str, seconds: int, metadata: dict[str, str] | None
    ) -> BatchRecord:
        """Begins a batch; its file's lines are checked first. Raises StorageError."""
        begun = int(time.time())
        record = BatchRecord(
            new_id("batch_"), endpoint, input_file_id, window, begun, begun + seconds, metadata
        )
        self._records.write(record)
        with self._changing:
            self._batches[record.id] = record
            self._submit(record)
        return record

    def cancel(self, record: BatchRecord) -> None:
        """Has a batch end; what is done until then has its results."""
        with self._changing:
            if record.has_ended or record.status == "cancelling":
                return
            record.enter("cancelling")
            self._records.write(record)
            if running := self._running.get(record.id):
                running.end("cancelled")

    def find(self, name: str) -> BatchRecord | None:
        """The batch of that identifier, its counts up to now."""
        with self._changing:
            if running := self._running.get(name):
                running.count()
            return self._batches.get(name)

    def all(self) -> list[BatchRecord]:
        """The batches, in the order of their making, their counts up to now."""
        with self._changing:
            return [record for name in self._batches if (record := self.find(name))]

    def by_status(self) -> dict[str, int]:
        return dict(Counter(record.status for record in self.all()))

    def file(self, name: str) -> tuple[FileRecord, Path] | None:
        """A file that a client has brought or a batch has written, and where it lies."""
        if (record := self.files.find(name)) is not None:
            return record, self.files.path(name)
        batch_id, kind = result_of(name)
        batch = self.find(batch_id)
        if batch is None or batch.result_id(kind) != name:
            return None
        folder = RunFolder(self._folder / batch.id)
        path = folder.results("openai") if kind == RESULTS else folder.errors
        if not path.is_file():
            return None
        ended = batch.completed_at or batch.cancelled_at or batch.expired_at or batch.created_at
        size = path.stat().st_size
        return FileRecord(name, f"{batch.id}_{kind}.jsonl", size, ended, "batch_output"), path

    def delete_file(self, name: str) -> None:
        """Removes a file; that of a batch which has not begun ends that batch."""
        batch_id, kind = result_of(name)
        if not kind:
            self.files.delete(name)
            return
        file = self.file(name)
        with self._changing:
            batch = self._batches[batch_id]
            batch.removed.append(kind)
            self._records.write(batch)
        if file is not None:
            file[1].unlink(missing_ok=True)

    def end_expired(self) -> None:
        """Ends the batches whose time is over."""
        with self._changing:
            for running in self._running.values():
                if running.record.expires_at <= time.time():
                    running.end("expired")

    def remove_old(self) -> None:
        """Removes what has been kept for server.keep_days."""
        if (days := self._config.server.keep_days) is None:
            return
        time_limit = time.time() - days * 86400
        needed = {record.input_file_id for record in self.all() if not record.has_ended}
        for file in self.files.all():
            if file.created_at < time_limit and file.id not in needed:
                self.files.delete(file.id)
        for record in self.all():
            if record.has_ended and record.created_at < time_limit:
                with self._changing:
                    del self._batches[record.id]
                    self._records.remove(record.id)
                shutil.rmtree(self._folder / record.id, ignore_errors=True)

    def _submit(self, record: BatchRecord) -> None:
        running = self._running[record.id] = _Running(record)
        if record.status == "cancelling":
            running.end("cancelled")
        elif record.expires_at <= time.time():
            running.end("expired")
        self._pool.submit(self._work, running)

    def _work(self, running: _Running) -> None:
        """The life of a batch's thread: nothing that fails in it reaches another."""
        record = running.record
        try:
            for attempt in range(1, _MOST_TRIES + 1):
                if self._is_done(running, attempt):
                    break
        except Interrupted:
            pass
        except Exception as error:  # the record cannot be written: the disk is full
            say(f"{record.id}: {error!r}")
        finally:
            with self._changing:
                del self._running[record.id]

    def _is_done(self, running: _Running, attempt: int) -> bool:
        """Runs the batch; False where it is to be tried again."""
        record = running.record
        try:
            self._run(running)
        except Interrupted:
            raise
        except (ConfigError, CheckpointError, StorageError) as error:
            self._fail(record, [line_error("invalid_batch", fault) for fault in error.faults[:MOST_ERRORS]])
        except Exception as error:
            lines = [error] if isinstance(error, MindBatchError) else traceback.format_exception(error)
            say(f"{record.id}: ended ({attempt} of {_MOST_TRIES} times): {' '.join(map(str, lines))}")
            if attempt < _MOST_TRIES:
                return False
            self._fail(record, [line_error("server_error", "the server could not run it; its log says why")])
        return True

    def _run(self, running: _Running) -> None:
        record = running.record
        config = run_config(self._config, self.files.path(record.input_file_id), self._folder / record.id)
        if record.status == "validating":
            wrong = line_errors(record, config, lambda: running.ending is not None)
            errors = [*islice(wrong, MOST_ERRORS)]
            if more := sum(1 for _ in wrong):
                errors.append(line_error("more_errors", f"and {more} more lines with errors"))
            if running.ending == "interrupted":
                raise Interrupted("the server ends")
            if errors or not (record.total or running.ending):
                self._fail(record, errors or [line_error("empty_file", "the file holds no request")])
                return
        with self._changing:
            if record.status == "validating":
                record.enter("in_progress")
            self._records.write(record)

        def load(folder: RunFolder) -> Generator:
            before = rows_of(folder)
            rows = BackgroundRows(self._engine, self._places, self._kernels)
            with self._changing:
                running.before, running.rows = (before.done, before.failed), rows
                if running.ending is not None:
                    rows.end(running.ending)
            return rows

        batch_job(config, self._opened, load).run()
        self._finish(running)

    def _finish(self, running: _Running) -> None:
        record = running.record
        counts = rows_of(RunFolder(self._folder / record.id))
        with self._changing:
            running.rows = None
            record.total, record.completed, record.failed = counts.total, counts.done, counts.failed
            record.finalizing_at = int(time.time())
            ended = running.ending if running.ending in ("cancelled", "expired") else None
            record.enter(ended or "completed")
            self._records.write(record)

    def _fail(self, record: BatchRecord, errors: list[dict[str, object]]) -> None:
        with self._changing:
            record.errors = errors
            record.enter("failed")
            self._records.write(record)
