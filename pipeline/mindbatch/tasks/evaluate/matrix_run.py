"""Running the columns: each a run over a file of requests with a ledger of its own, the model loaded once."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path

from rich.console import Console

from mindbatch.config.model_task import SEED
from mindbatch.io.amounts import today
from mindbatch.io.closing import Closing
from mindbatch.io.errors import MindBatchError
from mindbatch.io.moving_bar import LoadingLine, MovingBar
from mindbatch.io.screen_text import say
from mindbatch.io.storage import make_folder
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord
from mindbatch.llm import LLM
from mindbatch.loading.build import Notice
from mindbatch.loading.providers import OpenedFolder, open_model
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.generation import Tally
from mindbatch.run.identity import file_digest, fingerprint_fields, replica_of
from mindbatch.run.job import BatchJob, typed_command
from mindbatch.tasks.evaluate.columns import Column, run_config
from mindbatch.tasks.evaluate.continuation import Continuations
from mindbatch.tasks.evaluate.questions import Question
from mindbatch.tasks.evaluate.requests import GENERATION, Requests, prepare_requests
from mindbatch.tasks.evaluate.schema import EvaluateConfig


@dataclass(frozen=True)
class ColumnRuns:
    """The finished runs of a column, by what they measure; continuations: None where nothing was scored."""

    column: Column
    continuations: Continuations | None = None
    folders: dict[str, RunFolder] = field(default_factory=dict)


def run_columns(config: EvaluateConfig, columns: list[Column], questions: list[Question]) -> list[ColumnRuns]:
    """Runs what is not finished of every column. Each model is loaded once, if anything is left to run.

    Raises:
        ConfigError: a folder holds another run.
        CheckpointError: a model is not in order.
        StorageError, RankError, KeyboardInterrupt: as `BatchJob.run`; the same command goes on.
    """
    home = Path(config.output.dir or "")
    earlier = [*_earlier(home)]
    _keep_seed(config, earlier)
    date = config.data.date or min((record.date for record in earlier), default=today())
    questions = [_dated(question, date) for question in questions]
    by_model = [(name, [*group]) for name, group in groupby(columns, key=lambda column: column.checkpoint)]
    requests = {name: [*prepare_requests(config, group[0], questions, home)] for name, group in by_model}
    total = sum(file.count for name, group in by_model for file in requests[name] for _ in group)
    done: list[ColumnRuns] = []
    with MovingBar("evaluating", Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        progress = _Progress(bar, total)
        for name, group in by_model:
            with _LLMOfRuns(config, group[0], home, progress) as model:
                for column in group:
                    done.append(_run_column(config, column, requests[name], home, model, date))
    return done


def _earlier(home: Path) -> Iterator[RunRecord]:
    """The records of the runs of earlier commands."""
    for path in (*home.glob("columns/*/*/run.json"), *home.glob("scored/*/*/run.json")):
        with suppress(MindBatchError):  # a column of this command says so itself
            yield RunRecord.read(RunFolder(path.parent))


def _keep_seed(config: EvaluateConfig, earlier: Iterable[RunRecord]) -> None:
    """Takes the seed that an earlier command has drawn, if this one's is drawn, too; says what it is."""
    if not config.drawn:
        return
    sections = (config.decoding, *config.variants.values())
    chosen = [section for section in sections if section.seed == config.drawn[SEED]]
    kept = (record.fields.get(SEED) for record in earlier if record.seed_was_drawn)
    config.set_drawn_seed(chosen, next((seed for seed in kept if isinstance(seed, int)), config.drawn[SEED]))
    say(f"{SEED}={config.drawn[SEED]} was drawn")


def _dated(question: Question, date: str) -> Question:
    """The question with what a chat template is told, if it is a chat."""
    is_chat = "messages" in question.content
    return replace(question, content={**question.content, "date": date}) if is_chat else question


def _run_column(
    config: EvaluateConfig,
    column: Column,
    requests: list[Requests],
    home: Path,
    model: _LLMOfRuns,
    date: str,
) -> ColumnRuns:
    runs = ColumnRuns(column, requests[0].continuations)
    for file in requests:
        is_scored = file.kind != GENERATION
        folder = home / ("scored" if is_scored else "columns")
        folder = folder / (column.scored_as if is_scored else column.folder) / file.kind
        model.progress.begin(column.name, file.count)
        if folder not in model.finished:  # else another column of this command shares it
            made = run_config(config, column, file.path, folder, is_scored=is_scored)
            make_folder(folder.parent)
            fields = fingerprint_fields(made, model.digest_file, model.opened)
            BatchJob(
                made,
                fields,
                lambda folder: nullcontext(model.llm),
                lambda: None,
                command=typed_command(),
                date=date,
                on_step=model.progress.on_step,
            ).run()
            model.finished.add(folder)
        model.progress.end()
        runs.folders[file.kind] = RunFolder(folder)
    return runs


class _Progress:
    """One bar for all columns."""

    def __init__(self, bar: MovingBar, total: int) -> None:
        self._bar, self._total = bar, total
        self._before = self._whole = 0
        self._name = ""

    def begin(self, name: str, count: int) -> None:
        self._name, self._whole = name, count

    def notice(self, text: str) -> None:
        """Shows on the bar what takes time before rows end; "" restores the name of the column."""
        self._bar.set(self._before, self._total, text or self._name)

    def on_step(self, tally: Tally) -> None:
        self._bar.set(self._before + tally.done + tally.failed, self._total, self._name)

    def end(self) -> None:
        """The run has ended; what an earlier session did of it counts, too."""
        self._before += self._whole
        self._bar.set(self._before, self._total, self._name)


class SharedLLM(Closing):
    """A model with the adapters of all columns, beside each other."""

    def __init__(
        self, config: EvaluateConfig, column: Column, home: Path, notice: Notice | None = None
    ) -> None:
        """column: any of those that share the model. home: the folder of the evaluation.

        notice: shows what takes time while the model is loaded; None: a line of its own on the terminal.
        """
        self._config, self._column, self._home, self._notice = config, column, home, notice
        self._llm: LLM | None = None

    @cached_property
    def opened(self) -> OpenedFolder:
        """Its folder, opened once for the fingerprints of all runs and for loading."""
        return open_model(self._config_of_run.model, replica_of(self._config_of_run.parallel).part_of(0))

    @cached_property
    def _config_of_run(self) -> BatchConfig:
        made = run_config(self._config, self._column, Path(), self._home, is_scored=False)
        return replace(made, lora=self._config.lora)

    def close(self) -> None:
        if self._llm is not None:
            self._llm.close()

    @property
    def llm(self) -> LLM:
        """The model, which is loaded here when it is first asked for."""
        if self._llm is None:
            logs = self._home / "logs"
            with LoadingLine(shown=self._notice is None) as line:
                notice = self._notice or line
                self._llm = LLM.from_config(self._config_of_run, notice, logs, self.opened)
        return self._llm


class _LLMOfRuns(SharedLLM):
    """The model of several runs.

    digest_file: reads each file once for the fingerprints of all. finished: folders of runs that have ended.
    """

    def __init__(self, config: EvaluateConfig, column: Column, home: Path, progress: _Progress) -> None:
        super().__init__(config, column, home, progress.notice)
        self.progress = progress
        self.digest_file = cache(file_digest)
        self.finished: set[Path] = set()
