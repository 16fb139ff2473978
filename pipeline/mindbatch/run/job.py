"""One run over a dataset: claim its folder, survey the rows, run what is missing, write the result files."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

from mindbatch.config.model_task import SEED, slices_notes
from mindbatch.config.saved import save_config
from mindbatch.dataset.dataset import Dataset
from mindbatch.dataset.rows import RowFailure, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.folder_embeddings import folder_embeddings
from mindbatch.hub.models import fetched
from mindbatch.io.amounts import today
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, ConfigError, MindBatchError, is_unfinished
from mindbatch.io.screen_text import concealed, say
from mindbatch.io.storage import Storage, StorageError
from mindbatch.ledger.ledger import Ledger
from mindbatch.ledger.run_folder import RunFolder, claimed
from mindbatch.ledger.run_record import RunRecord
from mindbatch.message_formats.parser import MessageFormat
from mindbatch.prompts.prompts import STANDARD_INPUT
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.remote.sources import ChangedObject
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.generation import (
    MISMATCH_REMEDIES,
    Generator,
    RunMismatch,
    Tally,
    finished_rows,
    generate,
    has_results,
    open_ledger,
    refuse_unfinished,
)
from mindbatch.run.index import RowIndex
from mindbatch.run.manifest import (
    Status,
    computed_with,
    mixed,
    now,
    write_manifest,
    written_results,
)
from mindbatch.run.progress import Monitor, reading_line
from mindbatch.run.result_files import (
    calls_stay_text,
    message_format,
    output_options,
    result_format,
    write_result_files,
)
from mindbatch.run.survey import DataInput, Items, selection_of, survey, too_many_errors
from mindbatch.run.upload import ResultUpload

MAX_FOLDERS = 1000
OnStep = Callable[[Tally], None]


class TooManyErrors(MindBatchError):
    """More rows have failed than data.max_errors allows; finished rows are committed."""

    exit_code = EXIT_FAILED


def typed_command() -> list[str]:
    """Returns the words of this process's command line, without the folder of the program."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


@dataclass(eq=False)
class BatchJob:
    """One command over a dataset.

    fields: settings that determine the results besides the rows (see `identity.fingerprint_fields`).
    load: returns a context of the generator for a folder; called only if there are rows to run.
    tokenizer: loads the model's tokenizer, for results in OpenAI's format.
    command: the command line, for the run record.
    date: the date in chat templates of a new run whose options have none; None is today.
    retry: runs the failed rows of an existing run again.
    on_step: called after each step of the engine with the counts of this session. check: see `survey`.
    """

    config: BatchConfig
    fields: Mapping[str, Any]
    load: Callable[[RunFolder], AbstractContextManager[Generator]]
    tokenizer: Callable[[], Tokenizer | None]
    _: KW_ONLY
    command: Sequence[str] = ()
    date: str | None = None
    retry: bool = False
    storage: Storage = field(default_factory=Storage)
    stdin: BinaryIO | None = None
    on_step: OnStep = lambda tally: None
    check: Callable[[Items], Items] = iter

    def __post_init__(self) -> None:
        self._fields = dict(self.fields)
        self._input = DataInput(self.config.data, self.storage, kept=self.retry, stdin=self.stdin)
        self._params = DecodingParams(**vars(self.config.decoding))

    def run(self) -> int:
        """Runs to the end; returns the exit code, EXIT_FAILED if more rows have failed than may.

        Raises:
            ConfigError: the data or the folder does not fit the settings; nothing was begun.
            StorageError: the folder cannot be written; what was committed is safe.
            RankError: a process of a distributed job ended; what was finished is committed.
            TooManyErrors: more rows have failed than may; what was finished is committed.
            KeyboardInterrupt: an interrupt came; what was finished is committed.
        """
        for folder in self._folders():
            try:
                with claimed(folder, self.storage), RowIndex(folder.index) as index:
                    return self._run_in(folder, index)
            except RunMismatch:
                if self.config.output.on_mismatch != "new_dir":
                    raise
        raise ConfigError(
            f"output.dir={self.config.output.dir}: {MAX_FOLDERS} folders of that name hold other runs"
        )

    def _folders(self) -> Iterator[RunFolder]:
        """Yields output.dir, then the folders that on_mismatch=new_dir tries: runs/a, runs/a-2,
        runs/a-3..."""
        first = Path(self.config.output.dir or "")
        yield RunFolder(first)
        for number in range(2, MAX_FOLDERS + 1):
            yield RunFolder(first.with_name(f"{first.name}-{number}"))

    def _run_in(self, folder: RunFolder, index: RowIndex) -> int:
        if self.retry:
            refuse_unfinished(folder)
        self._keep_seed(folder)
        upload = ResultUpload(folder, self.config.output.upload)
        upload.check()
        dataset = self._dataset(folder)
        maker = RowMaker(
            self.config.data,
            self._params,
            dataset.is_openai,
            columns=self.config.output.columns,
            is_finished=finished_rows(folder),
            lora=self.config.lora,
            model_name=self.config.model_name,
            message_format=self._message_format if dataset.is_openai else None,
            embeddings=folder_embeddings(self.config.model.checkpoint_name_or_path),
        )
        with closing(maker), reading_line(self.config.progress) as on_row:
            survey(dataset, maker, selection_of(self.config.data), index, on_row, self.check)
        if dataset.is_openai and maker.has_offered_tools and self._message_format is None:
            self._say(*calls_stay_text("output", self.config.output.message_format))
        self._say(*maker.notes())
        record = RunRecord(
            created=now(),
            command=concealed([*self.command]),
            fields=self._fields,
            dataset=concealed(dataset.digest()),
            date=self.config.data.date or self.date or today(),
            seed_was_drawn=bool(self.config.drawn),
            hub=fetched(Path(self.config.model.checkpoint_name_or_path or "")),
            sources=self._input.sources,
        )
        ledger, record = self._ledger(folder, record, index)
        with ledger:
            if not self.retry:
                save_config(self.config, folder.config_file, self.storage)
            format = result_format(self.config.output.format, dataset.is_openai)
            self._work(folder, index, ledger, record, format, upload)
        return EXIT_FAILED if self.config.data.is_failed_by(index.counts().failed) else EXIT_DONE

    def _dataset(self, folder: RunFolder) -> Dataset:
        """Opens the data, fetched in the versions that the folder's run has recorded, if any.

        Raises RunMismatch: an object has changed since, and the user does not start over.
        """
        self._input.recorded = (RunRecord.read(folder).sources or {}) if folder.holds_a_run else {}
        try:
            return self._input.dataset(folder)
        except ChangedObject as error:
            if self.config.output.on_mismatch != "overwrite" and (self.retry or has_results(folder)):
                remedy = "" if self.retry else f"; {MISMATCH_REMEDIES}"
                raise RunMismatch(f"{folder.path}: {line}{remedy}" for line in error.lines) from error
        self._input.recorded = {}
        return self._input.dataset(folder)

    def _keep_seed(self, folder: RunFolder) -> None:
        """Keeps the seed that was drawn at the beginning of the folder's run, if seed=random again."""
        config = self.config
        if not config.drawn or not folder.holds_a_run:
            return
        record = RunRecord.read(folder)
        seed = record.fields.get(SEED)
        if record.seed_was_drawn and isinstance(seed, int):
            config.set_drawn_seed([config.decoding], seed)
            self._fields[SEED] = seed
            self._params = DecodingParams(**vars(config.decoding))

    def _ledger(self, folder: RunFolder, record: RunRecord, index: RowIndex) -> tuple[Ledger, RunRecord]:
        """Opens the folder's ledger; first clears another run if the user overwrites it or it has no
        results."""
        accept = partial(self._input.accept, folder)
        date = self.config.data.date
        opened = partial(open_ledger, folder, record, index, self.storage, accept, date=date)
        try:
            return opened(retry=self.retry)
        except RunMismatch:
            worthless = not self.retry and not has_results(folder)
            if self.config.output.on_mismatch != "overwrite" and not worthless:
                raise
        kept = [folder.standard_input] if self.config.data.path == STANDARD_INPUT else []
        folder.clear(self.storage, keep=kept)
        accept()
        record.write(folder, self.storage)
        return opened(retry=False)

    def _work(
        self,
        folder: RunFolder,
        index: RowIndex,
        ledger: Ledger,
        record: RunRecord,
        format: str,
        upload: ResultUpload,
    ) -> None:
        """Runs the pending rows and writes the result files; the manifest records the status."""
        drawn = [f"{folder.path}: {SEED}={self._params.seed} was drawn"] if self.config.drawn else []
        self._say(*ledger.notes, *drawn)
        monitor = Monitor(self.config, folder, index.counts())
        results = folder.results(format).name
        others = written_results(folder) - {results}

        def write_status(status: Status) -> None:
            names = {results} if status == "complete" else {results, *others}
            session = monitor.session()
            write_manifest(
                folder,
                self.config,
                record,
                index,
                ledger,
                status,
                session,
                names,
                self.storage,
                upload.record,
            )

        if index.count(None):
            upload.check_again()
        write_status("running")
        try:
            if index.count(None):
                self._generate(folder, index, ledger, monitor, record.date)
            first_failed = self._write_results(folder, index, ledger, record, format)
            removed = folder.remove_results(others, self.storage)
        except BaseException as error:
            with suppress(StorageError):  # the first error is the one to report
                write_status("interrupted")
            if isinstance(error, StorageError):
                raise  # the index may be what cannot be read
            if is_unfinished(error) or isinstance(error, TooManyErrors):
                self._say(f"{folder.path}: {_progress(index)}; the same command resumes")
            raise
        write_status("complete")
        if first_failed is not None and not index.counts().done:
            self._say(f"{first_failed.location}: {first_failed.reason}")
        self._say(*(f"{folder.path}: {name} is removed; {results} has the results now" for name in removed))
        self._say(f"{folder.path}: {_progress(index, results)}")
        if upload.run([folder.results(format), folder.errors], now(), self.storage):
            self._say(f"{folder.path}: uploaded to {upload.address}, and compared")

    def _generate(
        self, folder: RunFolder, index: RowIndex, ledger: Ledger, monitor: Monitor, date: str
    ) -> None:
        failed = index.counts().failed
        self._limit_errors(failed, f"{failed:,} of {self.config.output.dir} already")
        with self.load(folder) as generator:
            ledger.computed_with = computed_with(self.config, generator.kernels)
            say(*mixed(folder, index, ledger), *slices_notes(int(ledger.computed_with["model_parallel"])))
            with monitor.watching(generator) as watch:

                def on_step(tally: Tally) -> None:
                    watch(tally)
                    self.on_step(tally)
                    self._limit_errors(failed + tally.failed, tally.last_error)

                generate(generator, index, ledger, self._params, on_step, date)
            say(*generator.take_notes())

    def _limit_errors(self, failed: int, last: str) -> None:
        """Raises TooManyErrors if more rows have failed than may. last: location and reason of the last
        one."""
        limit = self.config.data.error_limit
        if failed > limit:
            raise TooManyErrors(too_many_errors(limit, last))

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        return self.tokenizer()

    @cached_property
    def _message_format(self) -> MessageFormat | None:
        name = self.config.output.message_format
        return message_format(name, None if name == "none" else self._tokenizer)

    def _say(self, *lines: str) -> None:
        if self.config.progress != "none":
            say(*lines)

    def _write_results(
        self, folder: RunFolder, index: RowIndex, ledger: Ledger, record: RunRecord, format: str
    ) -> RowFailure | None:
        # Only OpenAI's format names tokens by their text, and parses messages.
        tokenizer = self._tokenizer if format == "openai" else None
        message_format = self._message_format if format == "openai" else None
        options = output_options(self.config, record, tokenizer, message_format)
        return write_result_files(format, folder, options, index, ledger, self.storage)


def _progress(index: RowIndex, results: str = "") -> str:
    """Formats the number of finished rows, and the name of the result file once it is written."""
    rows = index.counts()
    written = f" ({results})" if results and rows.done else ""
    failed = f", {rows.failed:,} failed (errors.jsonl)" if rows.failed else ""
    return f"{rows.done:,} of {rows.total:,} rows done{written}{failed}"
