"""`mindbatch evaluate harness.tasks=...`: the columns over tasks of lm-evaluation-harness."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console

from mindbatch.config.composition import save_config
from mindbatch.io.amounts import decimal, is_day, table, today
from mindbatch.io.errors import EXIT_DONE, ConfigError
from mindbatch.io.moving_bar import MovingBar
from mindbatch.io.screen_text import concealed, discarded_output, printable, say
from mindbatch.io.storage import make_folder, write_whole
from mindbatch.lm_eval import MISSING
from mindbatch.run.identity import file_digest, fingerprint_fields
from mindbatch.tasks.evaluate.columns import Column, baseline_of, columns_of, run_config
from mindbatch.tasks.evaluate.matrix_run import SharedLLM
from mindbatch.tasks.evaluate.schema import CONFIG, RESULTS, EvaluateConfig

if TYPE_CHECKING:  # an extra
    from mindbatch.lm_eval.tasks import HarnessTasks

OURS = "mindbatch.lm_eval"
"""The logger of what the model class warns of."""
FINGERPRINT = "mindbatch_fingerprint"
"""Key of what a column's results depend on, in its results.json."""
DATE = "mindbatch_date"
"""Key of the date that its chat templates were told, there."""

Scores = dict[str, dict[str, Any]]
"""By task and by metric."""


def run_harness(config: EvaluateConfig) -> int:
    """Runs the columns that are not finished; returns the exit code.

    Raises:
        ConfigError: the harness is not installed, or a task cannot be read or run.
        CheckpointError: a model is not in order.
        StorageError: the results cannot be written.
    """
    try:
        from mindbatch.lm_eval.tasks import read_tasks
    except ModuleNotFoundError as error:
        raise ConfigError(f"harness.tasks: {MISSING}") from error
    folder = config.harness.include_path
    columns, home = columns_of(config), Path(config.output.dir or "")
    date = config.data.date or _begun_on(home)
    baseline_of(config, columns)
    with _quiet(config):
        tasks = read_tasks(config.harness.tasks, None if folder is None else Path(folder))
    scores: dict[str, Scores] = {}
    digest = cache(file_digest)
    for _, grouped in groupby(columns, key=lambda column: column.checkpoint):
        group = [*grouped]
        with SharedLLM(config, group[0], home) as model:
            for column in group:
                scores[column.name] = _scores_of(config, column, tasks, home, model, digest, date)
    results = {
        "tasks": [*tasks.names],
        "columns": {
            column.name: {**_described(column), "results": scores[column.name]} for column in columns
        },
        "settings": concealed(config.resolved_settings),
    }
    write_whole(home / RESULTS, _json(results))
    save_config(config, home / CONFIG)
    written = [home / RESULTS]
    if config.report is not None:
        from mindbatch.tasks.evaluate.harness_evaluation import harness_evaluation
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
    warnings = _Warnings()
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
    say(*(f"{name}: {text}" for text in warnings.texts))


class _Warnings(logging.Handler):
    """Keeps the texts of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _described(column: Column) -> dict[str, Any]:
    return {
        "folder": f"columns/{column.folder}",
        "checkpoint": column.checkpoint,
        "adapter": column.adapter,
    }


def _scores_of(
    config: EvaluateConfig,
    column: Column,
    tasks: HarnessTasks,
    home: Path,
    model: SharedLLM,
    digest_file: Callable[[Path], str],
    date: str,
) -> Scores:
    """Reads a column's scores if all that they depend on is as in an earlier command, else computes them."""
    from mindbatch.lm_eval.model import MindBatchLM
    from mindbatch.lm_eval.tasks import evaluated, scores_of

    folder = home / "columns" / column.folder
    made = run_config(config, column, Path(), folder, is_scored=False)
    asked = {name: value for name, value in asdict(config.harness).items() if name != "include_path"}
    depends = [fingerprint_fields(made, digest_file), asked, tasks.digest]
    fingerprint = sha256(
        orjson.dumps(depends, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    ).hexdigest()
    if (finished := _finished(folder / RESULTS, fingerprint, date)) is not None:
        return scores_of(finished)
    options = {name: value for name, value in asked.items() if name != "tasks"}
    llm = model.llm
    with _quiet(config, column.name) as on_progress:
        lm = MindBatchLM(llm=llm, adapter=column.adapter, date=date, on_progress=on_progress)
        results = evaluated(lm, tasks, **options)
    make_folder(folder)
    for name, samples in results.pop("samples", {}).items():
        write_whole(
            folder / f"samples_{name}.jsonl", b"".join(_json(sample, indent=False) for sample in samples)
        )
    write_whole(folder / RESULTS, _json({**results, FINGERPRINT: fingerprint, DATE: date}))
    return scores_of(results)


def _begun_on(home: Path) -> str:
    """The first date that a column of an earlier command has; today where there is none."""
    dates = [_read(path).get(DATE) for path in home.glob(f"columns/*/{RESULTS}")]
    return min((date for date in dates if isinstance(date, str) and is_day(date)), default=today())


def _finished(path: Path, fingerprint: str, date: str) -> dict[str, Any] | None:
    """The results of a column that an earlier command has finished, whatever the date if it has none."""
    results = _read(path)
    return results if results.get(FINGERPRINT) == fingerprint and results.get(DATE, date) == date else None


def _read(path: Path) -> dict[str, Any]:
    """The results of a column; nothing where there are none."""
    try:
        content = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def harness_page(scores: dict[str, Scores]) -> str:
    """The scores for people: a row for each metric of each task, a column for each of the evaluation."""
    rows = [["task", "metric", "filter", *map(printable, scores)]]
    for task, metric in _rows(scores):
        named, _, filtered = metric.partition(",")
        cells = [printable(task), printable(named), printable(filtered)]
        rows.append(cells + [_cell(column.get(task, {}), named, filtered) for column in scores.values()])
    return "\n".join(table(rows, range(3, len(rows[0])), ruled=True))


def _rows(scores: dict[str, Scores]) -> Iterator[tuple[str, str]]:
    named = [
        (task, metric) for column in scores.values() for task, metrics in column.items() for metric in metrics
    ]
    return ((task, metric) for task, metric in dict.fromkeys(named) if "_stderr," not in metric)


def _cell(metrics: dict[str, Any], name: str, filtered: str) -> str:
    value, error = metrics.get(f"{name},{filtered}"), metrics.get(f"{name}_stderr,{filtered}")
    if not isinstance(value, int | float):
        return "-" if value is None else printable(str(value))
    text = decimal(value, ".4f")
    return f"{text} ± {error:.4f}" if isinstance(error, int | float) else text


def _json(value: Any, *, indent: bool = True) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 * indent | orjson.OPT_APPEND_NEWLINE)
