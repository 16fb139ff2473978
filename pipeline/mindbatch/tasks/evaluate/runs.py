"""Runs of an evaluation: a batch job over each file of requests of each column; loads each model once."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache, cached_property
from itertools import groupby, product
from pathlib import Path

from rich.console import Console

from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.model_schema import DecodingConfig
from mindbatch.config.model_task import SEED
from mindbatch.config.saved import WrittenSettings
from mindbatch.dataset.data_config import DataConfig, always_chats
from mindbatch.evaluation import REFERENCE_FREE
from mindbatch.io.amounts import today
from mindbatch.io.closing import Closing
from mindbatch.io.errors import MindBatchError
from mindbatch.io.moving_bar import MovingBar
from mindbatch.io.screen_text import say
from mindbatch.io.storage import make_folder
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord
from mindbatch.llm import LLM
from mindbatch.loading.build import Notice
from mindbatch.loading.providers import OpenedFolder, open_model
from mindbatch.run.batch_config import BatchConfig, BatchOutputConfig
from mindbatch.run.generation import Tally
from mindbatch.run.identity import file_digest, fingerprint_fields, replica_of
from mindbatch.run.job import BatchJob, typed_command
from mindbatch.tasks.evaluate.columns import Column, model_of
from mindbatch.tasks.evaluate.questions import Question
from mindbatch.tasks.evaluate.requests import (
    DECODING,
    GENERATION,
    MeasuredColumn,
    measured,
    prepare_requests,
)
from mindbatch.tasks.evaluate.schema import EvaluateConfig


def run_columns(
    config: EvaluateConfig, columns: list[Column], questions: list[Question]
) -> dict[str, MeasuredColumn]:
    """Runs the unfinished rows of every column. Each model is loaded once, if any row is left.

    Raises:
        ConfigError: a folder holds another run.
        CheckpointError: a model is damaged or not supported.
        StorageError, RankError, KeyboardInterrupt: as `BatchJob.run`; the same command resumes.
    """
    home = Path(config.output.dir or "")
    earlier = [*_earlier(home)]
    _keep_seed(config, earlier)
    date = config.data.date or min((record.date for record in earlier), default=today())
    questions = [_dated(question, date) for question in questions]
    by_model = [[*group] for _, group in groupby(columns, key=lambda column: column.checkpoint)]
    prepared = [prepare_requests(config, group[0], questions, home) for group in by_model]
    grouped = [*zip(by_model, prepared, strict=True)]
    total = sum(len(group) * count for group, requests in grouped for _, count in requests.files.values())
    finished = set[Path]()
    with MovingBar("evaluating", Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        progress = _Progress(bar, total)
        for group, requests in grouped:
            with SharedLLM(config, group[0], home, progress.notice) as model:
                for column, (kind, (path, count)) in product(group, requests.files.items()):
                    folder, is_scored = _run_folder(home, column, kind), kind != GENERATION
                    with progress.run(column.name, count):
                        if folder not in finished:  # else another column of this command shares it
                            batch_config = run_config(config, column, path, folder, is_scored=is_scored)
                            _run(model, batch_config, progress, date)
                            finished.add(folder)
    return {
        column.name: measured(
            column,
            {kind: RunFolder(_run_folder(home, column, kind)) for kind in requests.files},
            requests.continuations,
            config.task,
            questions,
        )
        for group, requests in grouped
        for column in group
    }


def _run_folder(home: Path, column: Column, kind: str) -> Path:
    """Names the folder of a run; columns that differ in decoding share those of scored texts."""
    if kind == GENERATION:
        return home / "columns" / column.folder / kind
    return home / "scored" / column.scored_as / kind


def _run(model: SharedLLM, config: BatchConfig, progress: _Progress, date: str) -> None:
    """Runs the unfinished requests of a kind of a column."""
    make_folder(Path(config.output.dir or "").parent)
    BatchJob(
        config,
        fingerprint_fields(config, model.digest_file, model.opened),
        lambda folder: nullcontext(model.llm),
        lambda: None,
        command=typed_command(),
        date=date,
        on_step=progress.on_step,
    ).run()


def _earlier(home: Path) -> Iterator[RunRecord]:
    """Reads the records of the runs of earlier commands."""
    for path in (*home.glob("columns/*/*/run.json"), *home.glob("scored/*/*/run.json")):
        with suppress(MindBatchError):  # a column of this command says so itself
            yield RunRecord.read(RunFolder(path.parent))


def _keep_seed(config: EvaluateConfig, earlier: Iterable[RunRecord]) -> None:
    """Keeps the seed that an earlier command drew, if this command would draw one, and prints it."""
    if not config.drawn:
        return
    sections = (config.decoding, *config.variants.values())
    chosen = [section for section in sections if section.seed == config.drawn[SEED]]
    kept = (record.fields.get(SEED) for record in earlier if record.seed_was_drawn)
    config.set_drawn_seed(chosen, next((seed for seed in kept if isinstance(seed, int)), config.drawn[SEED]))
    say(f"{SEED}={config.drawn[SEED]} was drawn")


def _dated(question: Question, date: str) -> Question:
    """Adds the date of the chat template to a question that is a chat."""
    is_chat = "messages" in question.content
    return replace(question, content={**question.content, "date": date}) if is_chat else question


def run_config(
    config: EvaluateConfig, column: Column, requests: Path, folder: Path, *, is_scored: bool
) -> BatchConfig:
    """Configures the run of a column over a file of requests.

    is_scored: the tokens of the requests are scored; else they are continued.
    """
    decoding = config.answer_decoding(column.decoding)
    if is_scored:
        decoding = DecodingConfig(max_new_tokens=1, prompt_logprobs=0)
    needs_tokens = not {*REFERENCE_FREE}.isdisjoint(config.metric_names)
    batch_config = BatchConfig(
        model=model_of(config, column),
        lora=adapters_of(config, column),
        decoding=decoding,
        parallel=config.parallel,
        launch=config.launch,
        runtime=config.runtime,
        data=requests_data(requests, config.data, is_scored=is_scored),
        output=BatchOutputConfig(dir=str(folder), format="jsonl", token_ids=not is_scored and needs_tokens),
        progress="none",
    )
    if decoding.seed == config.drawn.get(SEED):
        batch_config.drawn = config.drawn
    batch_config.written = WrittenSettings.of_derived(batch_config, config.written)
    return batch_config


def adapters_of(config: EvaluateConfig, column: Column) -> LoraConfig:
    """Configures the adapter of a column alone, as the default of its rows; none for the base."""
    name = column.adapter
    if name is None or config.lora.adapters[name] is None:
        return LoraConfig()
    return replace(config.lora, adapters={name: config.lora.adapters[name]}, default=name, max_loaded=None)


def requests_data(path: Path, data: DataConfig, *, is_scored: bool) -> DataConfig:
    """Configures the reading of a file of requests; data: has the tools and variables of the task's chats."""
    return DataConfig(
        path=str(path),
        format="jsonl",
        key_column="key",
        decoding_column=DECODING if is_scored else None,
        tools=data.tools,
        chat_template_kwargs=data.chat_template_kwargs,
        date=data.date,
        max_errors=data.max_errors,
        max_line_bytes="1GiB",
    )


class _Progress:
    """One bar for all columns."""

    def __init__(self, bar: MovingBar, total: int) -> None:
        self._bar, self._total = bar, total
        self._before, self._name = 0, ""

    def notice(self, text: str) -> None:
        """Shows on the bar what takes time before rows finish; "" restores the name of the column."""
        self._bar.set(self._before, self._total, text or self._name)

    def on_step(self, tally: Tally) -> None:
        self._bar.set(self._before + tally.done + tally.failed, self._total, self._name)

    @contextmanager
    def run(self, name: str, count: int) -> Iterator[None]:
        """Counts the run of a column; at its end the rows of earlier sessions count, too."""
        self._name = name
        yield
        self._before += count
        self.notice("")


class SharedLLM(Closing):
    """A model with the adapters of all columns, beside each other.

    digest_file: reads each file once for the fingerprints of all runs.
    """

    def __init__(self, config: EvaluateConfig, column: Column, home: Path, notice: Notice) -> None:
        """column: any of those that share the model. home: the folder of the evaluation.

        notice: shows what takes time while the model is loaded.
        """
        self.config, self.home = config, home
        self.digest_file = cache(file_digest)
        self._column, self._notice = column, notice
        self._llm: LLM | None = None

    @cached_property
    def opened(self) -> OpenedFolder:
        """Its folder, opened once for the fingerprints of all runs and for loading."""
        return open_model(self._config_of_run.model, replica_of(self._config_of_run.parallel).part_of(0))

    @cached_property
    def _config_of_run(self) -> BatchConfig:
        batch_config = run_config(self.config, self._column, Path(), self.home, is_scored=False)
        return replace(batch_config, lora=self.config.lora)

    def close(self) -> None:
        if self._llm is not None:
            self._llm.close()

    @property
    def llm(self) -> LLM:
        """The model, which is loaded at first use."""
        if self._llm is None:
            logs = self.home / "logs"
            self._llm = LLM.from_config(self._config_of_run, self._notice, logs, self.opened)
            if cause := always_chats(self.config.data):
                self._llm.refuse_chats(cause)
        return self._llm
