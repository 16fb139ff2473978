"""`mindbatch evaluate`: one task, several checkpoints and decodings, their scores side by side."""

from datetime import datetime, timezone
from pathlib import Path

from mindbatch.config.composition import save_config
from mindbatch.evaluation import metric_of
from mindbatch.evaluation.scores import scores_of
from mindbatch.io.amounts import counted
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.io.screen_text import concealed, say
from mindbatch.io.storage import write_whole
from mindbatch.tasks.evaluate.columns import baseline_of, columns_of
from mindbatch.tasks.evaluate.matrix_run import run_columns
from mindbatch.tasks.evaluate.measured import measured
from mindbatch.tasks.evaluate.questions import read_questions
from mindbatch.tasks.evaluate.results import Evaluation, write_results
from mindbatch.tasks.evaluate.schema import CONFIG, EvaluateConfig
from mindbatch.tasks.evaluate.table import evaluation_page


def run(config: EvaluateConfig) -> int:
    """Runs the task; returns the exit code: failed when any row of any column could not be run.

    Raises:
        ConfigError: the data are not what the task needs, or a folder holds another run.
    """
    if config.harness.tasks is not None:
        from mindbatch.tasks.evaluate.harness import run_harness  # an extra

        return run_harness(config)
    columns = columns_of(config)
    baseline = baseline_of(config, columns)
    questions = read_questions(config)
    runs = run_columns(config, columns, questions)
    measured_columns = {
        column_runs.column.name: measured(column_runs, config.task, questions) for column_runs in runs
    }
    clusters = [question.cluster for question in questions]
    scores = [
        scores_of(
            metric,
            {name: column.of(metric.needs) for name, column in measured_columns.items()},
            clusters,
            baseline.name,
        )
        for metric in map(metric_of, config.metric_names)
    ]
    evaluation = Evaluation(
        task=config.task.name or Path(config.data.path or "").name.partition(".")[0] or "task",
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        questions=questions,
        columns=columns,
        measured=measured_columns,
        baseline=baseline.name,
        scores=scores,
        few_shot=config.task.few_shot,
        settings=concealed(config.resolved_settings),
    )
    home = Path(config.output.dir or "")
    written = write_results(evaluation, home, samples=config.output.samples)
    save_config(config, home / CONFIG)
    if config.report is not None:
        from mindbatch.tasks.evaluate.report import report_page  # only a page pays for the templates

        write_whole(Path(config.report), report_page(evaluation).encode())
        written.append(Path(config.report))
    print(evaluation_page(evaluation))
    say(*(f"written {path}" for path in written))
    return _report_errors(evaluation)


def _report_errors(evaluation: Evaluation) -> int:
    for name, column in evaluation.measured.items():
        if column.errors:
            number, reason = min(column.errors.items())
            place = evaluation.questions[number].place
            failed = counted(len(column.errors), "question")
            say(f"{name}: {failed} could not be run; the first: {place}: {reason}")
    return EXIT_FAILED if evaluation.num_errors else EXIT_DONE
