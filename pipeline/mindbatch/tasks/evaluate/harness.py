"""`mindbatch evaluate harness.tasks=...`: the columns over tasks of lm-evaluation-harness, an extra."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import import_module
from itertools import groupby
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console

from mindbatch.config.saved import save_config
from mindbatch.io.amounts import is_day, today
from mindbatch.io.error_lines import did_you_mean, shown
from mindbatch.io.errors import EXIT_DONE, ConfigError
from mindbatch.io.installation import missing
from mindbatch.io.moving_bar import MovingBar
from mindbatch.io.screen_text import concealed, discarded_output, say
from mindbatch.io.storage import make_folder, write_whole
from mindbatch.run.identity import fingerprint_fields
from mindbatch.tasks.evaluate.columns import Column, baselines_of, columns_of
from mindbatch.tasks.evaluate.harness_evaluation import (
    Scores,
    harness_evaluation,
    harness_page,
    named_scores,
)
from mindbatch.tasks.evaluate.results import write_json
from mindbatch.tasks.evaluate.runs import SharedLLM, run_config
from mindbatch.tasks.evaluate.schema import CONFIG, RESULTS, EvaluateConfig
from mindbatch.tasks.evaluate.task_schema import HarnessConfig
from mindbatch.tasks.runs import json_mapping

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from mindbatch.lm_eval.model import MindBatchLM

OURS = "mindbatch.lm_eval"
"""The logger of what the model class warns of."""
FINGERPRINT = "mindbatch_fingerprint"
"""Key of what a column's results depend on, in its results.json."""
DATE = "mindbatch_date"
"""Key of the date that its chat templates were told, there."""
BOOTSTRAP = 1000
"""Resamples for the standard errors that have no formula."""


def run_harness(config: EvaluateConfig) -> int:
    """Runs the columns that are not finished; returns the exit code.

    Raises:
        ConfigError: the harness is not installed, or a task cannot be read or run.
        CheckpointError: a model is not in order.
        StorageError: the results cannot be written.
    """
    try:
        import_module("lm_eval.evaluator")
    except ModuleNotFoundError as error:
        raise ConfigError(f"harness.tasks: {missing('lm_eval')}") from error
    folder = config.harness.include_path
    columns, home = columns_of(config), Path(config.output.dir or "")
    date = config.data.date or _begun_on(home)
    baselines_of(config, columns)
    with _quiet(config):
        tasks = read_tasks(config.harness.tasks, None if folder is None else Path(folder))
    scores: dict[str, Scores] = {}
    for _, grouped in groupby(columns, key=lambda column: column.checkpoint):
        group = [*grouped]
        with SharedLLM(config, group[0], home) as model:
            for column in group:
                scores[column.name] = named_scores(_results_of(model, column, tasks, date))
    results = {
        "tasks": [*tasks.names],
        "columns": {
            column.name: {
                "folder": f"columns/{column.folder}",
                "checkpoint": column.checkpoint,
                "adapter": column.adapter,
                "results": scores[column.name],
            }
            for column in columns
        },
        "settings": concealed(config.resolved_settings),
    }
    written = [write_json(home / RESULTS, results)]
    save_config(config, home / CONFIG)
    if config.report is not None:
        from mindbatch.tasks.evaluate.report import report_page  # only a page pays for the templates

        write_whole(Path(config.report), report_page(harness_evaluation(config, columns)).encode())
        written.append(Path(config.report))
    print(harness_page(scores))
    say(*(f"written {path}" for path in written))
    return EXIT_DONE


@contextmanager
def _quiet(config: EvaluateConfig, name: str = "") -> Iterator[Callable[[str, int, int], None] | None]:
    """Hides what the harness and its tasks print, but with --verbose, and says afterwards what it was warned
    of here. Gives what shows the progress of a column in place of their bars."""
    if config.wants_verbose:
        yield None
        return
    warnings = BufferingHandler(sys.maxsize)
    warnings.setLevel(logging.WARNING)
    logging.getLogger(OURS).addHandler(warnings)
    try:
        with (
            discarded_output() as terminal,
            MovingBar(
                "evaluating", Console(file=terminal), disable=not terminal.isatty(), redirect=False
            ) as bar,
        ):
            yield lambda title, done, total: bar.set(done, total, f"{name}: {title}")
    finally:
        logging.getLogger(OURS).removeHandler(warnings)
    say(*(f"{name}: {record.getMessage()}" for record in warnings.buffer))


@dataclass(frozen=True)
class HarnessTasks:
    """Tasks with their data. digest: of what is asked and how, and of the data."""

    names: Sequence[str]
    manager: TaskManager
    digest: str


def read_tasks(names: Sequence[str], include_path: Path | None) -> HarnessTasks:
    """Reads tasks and their data: those of a folder, or the harness's own where there is none.

    Raises:
        ConfigError: a task that there is not, or whose files or data cannot be read.
    """
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=include_path, include_defaults=include_path is None)
    if unknown := [name for name in names if name not in manager.all_tasks]:
        where = f"in {include_path}" if include_path else "in lm-evaluation-harness"
        known = [name for name in manager.all_tasks if name]
        raise ConfigError(
            [
                f"harness.tasks: {shown(task)}: no such task {where}{did_you_mean(task, known)}"
                for task in unknown
            ]
        )
    try:
        loaded = manager.load([*names])["tasks"]
    except Exception as error:  # whatever a task's own code and the reader of its data may raise
        raise ConfigError(f"harness.tasks: cannot be read: {type(error).__name__}: {error}") from error
    digest = sha256()
    for name in sorted(loaded):
        task = loaded[name]
        digest.update(_bytes([name, task.dump_config()]))
        for split, docs in sorted((task.dataset or {}).items()):
            digest.update(_bytes([split]))
            for doc in docs:
                digest.update(_bytes(doc))
    return HarnessTasks(names, manager, digest.hexdigest())


def evaluated(model: MindBatchLM, tasks: HarnessTasks, config: HarnessConfig) -> dict[str, Any]:
    """Runs the harness and returns what it found as plain JSON: `results`, `configs`, `samples` and the rest.

    Raises:
        ConfigError, PromptError: as from the model.
    """
    from lm_eval import simple_evaluate

    results = simple_evaluate(
        model,
        tasks=[*tasks.names],
        task_manager=tasks.manager,
        num_fewshot=config.num_fewshot,
        limit=config.limit,
        apply_chat_template=config.apply_chat_template,
        bootstrap_iters=BOOTSTRAP,
    )
    plain: dict[str, Any] = json.loads(_bytes(results))
    return plain


def _bytes(value: Any) -> bytes:
    """Encodes as JSON; what has no form there as its text."""

    def plain(value: Any) -> Any:
        return value.item() if hasattr(value, "item") else str(value)

    return json.dumps(value, default=plain, sort_keys=True, ensure_ascii=False).encode()


def _results_of(model: SharedLLM, column: Column, tasks: HarnessTasks, date: str) -> Mapping[str, Any]:
    """Reads a column's results if all that they depend on is as in an earlier command, else computes them."""
    from mindbatch.lm_eval.model import MindBatchLM

    config, folder = model.config, model.home / "columns" / column.folder
    made = run_config(config, column, Path(), folder, is_scored=False)
    asked = {name: value for name, value in asdict(config.harness).items() if name != "include_path"}
    depends = [fingerprint_fields(made, model.digest_file), asked, tasks.digest]
    fingerprint = sha256(
        orjson.dumps(depends, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    ).hexdigest()
    if (finished := _finished(folder / RESULTS, fingerprint, date)) is not None:
        return finished
    llm = model.llm
    with _quiet(config, column.name) as on_progress:
        lm = MindBatchLM(llm=llm, adapter=column.adapter, date=date, on_progress=on_progress)
        results = evaluated(lm, tasks, config.harness)
    make_folder(folder)
    for name, samples in results.pop("samples", {}).items():
        lines = b"".join(orjson.dumps(sample, option=orjson.OPT_APPEND_NEWLINE) for sample in samples)
        write_whole(folder / f"samples_{name}.jsonl", lines)
    write_json(folder / RESULTS, {**results, FINGERPRINT: fingerprint, DATE: date})
    return results


def _begun_on(home: Path) -> str:
    """The first date that a column of an earlier command has; today where there is none."""
    dates = [_read(path).get(DATE) for path in home.glob(f"columns/*/{RESULTS}")]
    return min((date for date in dates if isinstance(date, str) and is_day(date)), default=today())


def _finished(path: Path, fingerprint: str, date: str) -> Mapping[str, Any] | None:
    """The results of a column that an earlier command has finished, whatever the date if it has none."""
    results = _read(path)
    return results if results.get(FINGERPRINT) == fingerprint and results.get(DATE, date) == date else None


def _read(path: Path) -> Mapping[str, Any]:
    """The results of a column; nothing where there are none."""
    try:
        return json_mapping(path.read_bytes())
    except OSError:
        return {}
