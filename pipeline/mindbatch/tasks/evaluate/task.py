"""`mindbatch evaluate`: a task under several models, adapters and decodings, with scores side by side."""

from pathlib import Path

from mindbatch.config.saved import save_config
from mindbatch.io.amounts import counted
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.io.screen_text import concealed, say
from mindbatch.io.storage import write_whole
from mindbatch.tasks.evaluate.columns import baselines_of, columns_of
from mindbatch.tasks.evaluate.questions import read_questions
from mindbatch.tasks.evaluate.results import Evaluation, evaluation_page, scores_by, write_results
from mindbatch.tasks.evaluate.runs import run_columns
from mindbatch.tasks.evaluate.schema import CONFIG, EvaluateConfig


def run(config: EvaluateConfig) -> int:
    """Runs the task; returns the exit code: failed when more rows of a column could not be run than may.

    Raises:
        ConfigError: the data are not what the task needs, or a folder holds another run.
    """
    columns = columns_of(config)
    baselines = baselines_of(config, columns)
    questions = read_questions(config)
    measured = run_columns(config, columns, questions)
    evaluation = Evaluation(
        task=config.task.name or config.data.name or "task",
        questions=questions,
        columns=measured,
        baselines=baselines,
        scores=scores_by(config.metric_names, measured, questions, baselines),
        settings=concealed(config.resolved_settings),
        few_shot=config.task.few_shot or 0,
    )
    home = Path(config.output.dir or "")
    page = None if config.report is None else Path(config.report)
    written = write_files(evaluation, home, page, samples=config.output.samples)
    save_config(config, home / CONFIG)
    print(evaluation_page(evaluation))
    say(*(f"written {path}" for path in written))
    _say_errors(evaluation)
    is_failed = any(config.data.is_failed_by(len(column.errors)) for column in measured.values())
    return EXIT_FAILED if is_failed else EXIT_DONE


def write_files(
    evaluation: Evaluation, folder: Path, page: Path | None, *, samples: bool = True
) -> list[Path]:
    """Writes the results and the page; lists both. Raises StorageError."""
    written = write_results(evaluation, folder, samples=samples)
    if page is not None:
        from mindbatch.tasks.evaluate.report import report_page  # only a page pays for the templates

        write_whole(page, report_page(evaluation).encode())
        written.append(page)
    return written


def _say_errors(evaluation: Evaluation) -> None:
    failures = {name: column.errors for name, column in evaluation.columns.items() if column.errors}
    for name, errors in failures.items():
        number, reason = min(errors.items())
        source, failed = evaluation.questions[number].source, counted(len(errors), "question")
        say(f"{name}: {failed} could not be run; the first: {source}: {reason}")
