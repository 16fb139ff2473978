"""The keys of `mindbatch evaluate`, the columns that they name, and the files that it writes."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from mindbatch.config.error_log import shown
from mindbatch.config.hub_models import NO_MODEL
from mindbatch.config.model_schema import DecodingConfig
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.paths import (
    input_file_error,
    model_folder_error,
    page_error,
    resolved,
    run_folder_error,
)
from mindbatch.config.schema import SchemaKeys, option, private_option, section
from mindbatch.dataset.data_config import SOURCES, DataConfig, data_errors, resolve_data
from mindbatch.decoding.params import PARAMETERS
from mindbatch.evaluation import METRIC_NAMES
from mindbatch.fields import kinds as kind
from mindbatch.io.error_lines import did_you_mean
from mindbatch.tasks.evaluate.task_schema import (
    NAME,
    NAME_RULE,
    AnswerConfig,
    answer_errors,
)

OWN_MODEL = "model"
"""The name of `model` among several checkpoints."""

RESULTS = "results.json"
CONFIG = "evaluation.config.yaml"
GENERATOR = "mindbatch evaluate"
"""Name of the generator in the head of a page."""

_RUNS = {"columns", "requests"}
_NAMES = {RESULTS, CONFIG, "scored", "logs", *_RUNS}


@dataclass
class EvaluateOutputConfig:
    """The folder of the runs and the results."""

    dir: str | None = option(
        None,
        "folder of the evaluation, new or to be resumed; null: that of `report` without its ending, "
        "or else evaluation",
        is_path=True,
    )
    samples: bool = option(True, "write each row's prompt, answer and scores for each column")
    private: bool = private_option()


@dataclass
class EvaluateConfig(ModelTaskConfig):
    """The keys of `mindbatch evaluate`."""

    listed_group: ClassVar[str] = "decoding"
    listed_options: ClassVar[tuple[str, ...]] = ("greedy",)
    records_seed: ClassVar[bool] = True

    data: DataConfig = section(DataConfig)
    task: AnswerConfig = section(AnswerConfig)
    checkpoints: Any = option(
        None,
        "models to evaluate, with or without `model`, by the names of their columns",
        kind.described("mapping of names to folders, or null"),
    )
    metrics: Any = option(
        None, "metrics instead of those of the task", kind.described("name, list of names, or null")
    )
    baseline: str | None = option(
        None,
        "column that the others are compared with; null: the first with the same decoding, or the first",
    )
    output: EvaluateOutputConfig = section(EvaluateOutputConfig)
    report: str | None = option(None, "file for the page of the report (HTML)", is_path=True)

    @property
    def is_private(self) -> bool:
        return self.output.private

    def resolve_paths(self) -> list[str]:
        errors = super().resolve_paths()
        if self.checkpoints:  # they need no model beside them
            errors = [error for error in errors if error != NO_MODEL]
        resolve_data(self.data, errors)
        if isinstance(self.checkpoints, Mapping):
            self.checkpoints = {
                name: resolved(f"checkpoints.{name}", folder, model_folder_error, errors, is_model=True)
                if isinstance(folder, str)
                else folder
                for name, folder in self.checkpoints.items()
            }
        self.report = resolved("report", self.report, page_error(GENERATOR), errors)
        task, error_of = self.task, input_file_error("rows to take examples from")
        task.few_shot_path = resolved("task.few_shot_path", task.few_shot_path, error_of, errors)
        folder = self.output.dir or (str(Path(self.report).with_suffix("")) if self.report else "evaluation")
        self.output.dir = resolved("output.dir", folder, evaluation_folder_error, errors)
        return errors

    @property
    def rows_data(self) -> DataConfig:
        """The data configuration of the rows, with the prompts of `data`, or else of the task."""
        data, task = self.data, self.task
        if task.text_column is not None:
            return replace(data, prompt_column=task.text_column)
        if task.template is None or any(getattr(data, name) is not None for name in SOURCES):
            return data
        return replace(data, template=task.template)

    def answer_decoding(self, option: str) -> DecodingConfig:
        """Applies the task's length and stop texts to an option of `decoding` that does not set them."""
        decoding, task = self.variants[option], self.task
        overrides = {}
        for name, value in (("max_new_tokens", task.max_new_tokens), ("stop", task.stop)):
            declared = PARAMETERS[name]
            if value is not None and declared.kind.read(getattr(decoding, name)) == declared.default:
                overrides[name] = value
        changed: DecodingConfig = replace(decoding, **overrides)
        return changed

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics, each once."""
        return tuple(dict.fromkeys(self._metrics))

    @property
    def _metrics(self) -> Any:
        metrics = self.task.metrics if self.metrics is None else self.metrics
        return [metrics] if isinstance(metrics, str) else metrics

    def run_errors(self, keys: SchemaKeys) -> Iterable[str]:
        yield from super().run_errors(keys)
        yield from _checkpoint_errors(self.checkpoints)
        if self.model.checkpoint_name_or_path is not None and OWN_MODEL in (self.checkpoints or ()):
            yield f"checkpoints.{OWN_MODEL}: is the column of `model` itself; use another name"
        if self.lora.default is not None:
            yield f"lora.default={shown(self.lora.default)}: each adapter is a column here; remove it"
        yield from data_errors(self.data)
        yield from _metric_errors("task.metrics" if self.metrics is None else "metrics", self._metrics)
        yield from answer_errors(self.task)
        if self.data.format == "openai":
            yield "data.format=openai: requests have no right answers beside them; use jsonl, csv or parquet"


def _checkpoint_errors(checkpoints: Any) -> Iterator[str]:
    if checkpoints is None:
        return
    if not isinstance(checkpoints, Mapping):
        yield f"checkpoints={shown(checkpoints)}: must be a mapping of names to folders, like {{sft: FOLDER}}"
        return
    for name, folder in checkpoints.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            yield f"checkpoints: {shown(name)}: {NAME_RULE}"
        if not isinstance(folder, str) or not folder:
            yield f"checkpoints.{name}={shown(folder)}: must be the folder of a model"


def _metric_errors(where: str, metrics: Any) -> Iterator[str]:
    if not isinstance(metrics, list | tuple) or not metrics:
        yield f"{where}={shown(metrics)}: must be a list of metrics, like [exact_match, f1]"
        return
    for name in metrics:
        if name not in METRIC_NAMES:
            near = did_you_mean(str(name), METRIC_NAMES)
            yield f"{where}: {shown(name)}: no such metric; there are {', '.join(METRIC_NAMES)}{near}"


def evaluation_folder_error(path: Path) -> str | None:
    """Explains why a path cannot be the folder of an evaluation: it must be new, empty, or have one."""
    if (error := run_folder_error(path)) or not path.is_dir():
        return error
    names = {*os.listdir(path)}
    if CONFIG in names or (names <= _NAMES and (not names or names & _RUNS)):
        return None
    strange = min(names - _NAMES, default=min(names))
    return f"has {shown(strange)} in it but no evaluation; give a new or empty folder"
