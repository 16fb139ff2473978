"""Batches: each is a run in a folder of its own, resumed when the server starts, ended or cancelled."""

import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mindbatch.async_llm import AsyncLLM
from mindbatch.io.storage import Storage, make_folder
from mindbatch.ledger.run_folder import RunFolder, RunLock
from mindbatch.llm import LLM
from mindbatch.loading.providers import OpenedFolder
from mindbatch.server.batch_work import BatchWork
from mindbatch.server.records import (
    RESULTS,
    BatchRecord,
    FileRecord,
    Files,
    Records,
    is_own,
    new_id,
    own_size,
    result_of,
)
from mindbatch.server.requests import ApiError
from mindbatch.server.schema import ServeConfig


class Batches:
    """The files and batches of one folder, which is this server's alone; and the threads that run them.

    The methods may be called by any thread. Raises ConfigError when another server has the folder.
    """

    def __init__(self, config: ServeConfig, opened: OpenedFolder, llm: LLM, engine: AsyncLLM) -> None:
        folder = Path(config.server.batches_dir or "").absolute()
        storage = Storage()
        make_folder(folder)
        self._lock = RunLock(RunFolder(folder), storage)
        self.files = Files(folder / "files", storage, config.server.max_files)
        self.records = Records(folder / "batches", BatchRecord, storage)
        self.config, self.opened, self.llm, self.engine = config, opened, llm, engine
        self.changing = threading.RLock()  # held while records change
        self._running: dict[str, BatchWork] = {}
        self._is_ending = False
        self._pool = ThreadPoolExecutor(config.server.max_batches, "batch")

    def start(self) -> None:
        """Goes on with the batches that have not ended."""
        for record in self.records.all():
            if not record.has_ended:
                self._submit(record)

    def stop(self) -> None:
        """Ends the threads; what was finished is committed, and the batches go on another time."""
        self.interrupt()
        self._pool.shutdown(cancel_futures=True)
        self._lock.close()

    def interrupt(self) -> None:
        """Has the batches end, to go on another time; one that is created now begins then."""
        with self.changing:
            self._is_ending = True
            for running in self._running.values():
                running.end("interrupted")

    def create(
        self, input_file_id: str, endpoint: str, window: str, seconds: int, metadata: dict[str, str] | None
    ) -> BatchRecord:
        """Begins a batch; its file's lines are checked first. Raises StorageError."""
        if len(self._running) >= self.config.server.max_files:
            raise ApiError(
                429, f"{len(self._running)} batches have not ended, the most at a time", "too_many_batches"
            )
        begun = int(time.time())
        record = BatchRecord(
            new_id("batch_"), endpoint, input_file_id, window, begun, begun + seconds, metadata
        )
        self.records.keep(record)
        with self.changing:
            self._submit(record)
        return record

    def cancel(self, record: BatchRecord) -> None:
        """Has a batch end; what is done until then has its results."""
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
        """A batch that is not done with a file."""
        unfinished = (record for record in self.records.all() if not record.has_ended)
        return next((record.id for record in unfinished if record.input_file_id == file_id), None)

    def file(self, name: str) -> tuple[FileRecord, Path] | None:
        """A file that a client has brought or a batch has written, and where it lies."""
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
        """Removes a file; an ApiError while a batch needs it."""
        batch_id, kind = result_of(name)
        if not kind:
            if (user := self.user_of(name)) is not None:
                raise ApiError(409, f"file {name}: {user} runs its lines; cancel that first", "file_in_use")
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
        """Removes what has been kept for server.keep_days."""
        if (days := self.config.server.keep_days) is None:
            return
        time_limit = time.time() - days * 86400
        for file in self.files.all():
            if file.created_at < time_limit and self.user_of(file.id) is None:
                self.files.delete(file.id)
        for record in self.records.all():
            if record.has_ended and record.created_at < time_limit:
                with self.changing:
                    self.records.delete(record.id)
                shutil.rmtree(self.records.path(record.id), ignore_errors=True)

    def share(self) -> int:
        """Rows that a batch may have in the engine: twice its part of the places, so that all are filled."""
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
