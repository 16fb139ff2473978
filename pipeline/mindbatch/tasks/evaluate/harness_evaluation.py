"""Results of lm-evaluation-harness: as a table, and as an `Evaluation` for the page."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson

from mindbatch.evaluation.chance import Interval
from mindbatch.evaluation.metric import Answer, ChoiceScores, Generated, Metric, by_sample, ratio
from mindbatch.evaluation.scores import Estimate, MetricScores, scores_of
from mindbatch.evaluation.texts import exp_ratio, log2_ratio
from mindbatch.io.amounts import decimal, table
from mindbatch.io.screen_text import concealed, printable
from mindbatch.tasks.evaluate.columns import Column, baselines_of
from mindbatch.tasks.evaluate.questions import Question
from mindbatch.tasks.evaluate.requests import MeasuredColumn
from mindbatch.tasks.evaluate.results import Evaluation
from mindbatch.tasks.evaluate.schema import RESULTS, EvaluateConfig

UNFILTERED = "none"
_OF_95_PERCENT = 1.96
"""Standard errors on both sides of a value."""

Scores = Mapping[str, Mapping[str, Any]]
"""By task or group, and by metric as the harness names it: `acc,none`."""
Sample = Mapping[str, Any]
Samples = Mapping[str, Sequence[Sample]]
"""By task: a line for each question and filter, as the harness writes them."""


class _Score(NamedTuple):
    """One of the harness's scores, of one task or group and one way of reading answers."""

    task: str
    metric: str
    filtered: str

    def value(self, scores: Scores) -> Any:
        return scores.get(self.task, {}).get(f"{self.metric},{self.filtered}")

    def stderr(self, scores: Scores) -> Any:
        return scores.get(self.task, {}).get(f"{self.metric}_stderr,{self.filtered}")


def named_scores(results: Mapping[str, Any]) -> Scores:
    """Selects the scores of each task and group, without the names of tasks."""
    both = {**results.get("results", {}), **results.get("groups", {})}
    return {
        name: {metric: value for metric, value in scores.items() if "," in metric}
        for name, scores in both.items()
    }


def _scores(columns: Mapping[str, Scores]) -> list[_Score]:
    """Every score that any column has, but for standard errors."""
    names = [
        _Score(task, *metric.split(",", 1))
        for scores in columns.values()
        for task, metrics in scores.items()
        for metric in metrics
    ]
    return [score for score in dict.fromkeys(names) if not score.metric.endswith("_stderr")]


def harness_page(columns: Mapping[str, Scores]) -> str:
    """The scores for people: a row for each metric of each task, a column for each of the evaluation."""
    rows = [["task", "metric", "filter", *map(printable, columns)]]
    for score in _scores(columns):
        rows.append([*map(printable, score), *(_cell(score, scores) for scores in columns.values())])
    return "\n".join(table(rows, range(3, len(rows[0])), ruled=True))


def _cell(score: _Score, scores: Scores) -> str:
    value, error = score.value(scores), score.stderr(scores)
    if not isinstance(value, int | float):
        return "-" if value is None else printable(str(value))
    text = decimal(value, ".4f")
    return f"{text} ± {error:.4f}" if isinstance(error, int | float) else text


def harness_evaluation(config: EvaluateConfig, columns: Sequence[Column]) -> Evaluation:
    """The columns, all of which are finished, with every answer beside the others."""
    home = Path(config.output.dir or "") / "columns"
    results = {column.name: orjson.loads((home / column.folder / RESULTS).read_bytes()) for column in columns}
    samples = {column.name: _samples(home / column.folder, results[column.name]) for column in columns}
    scores = {name: named_scores(content) for name, content in results.items()}
    first = samples[columns[0].name]
    questions = {
        (task, sample["doc_id"]): _question(task, sample) for task, lines in first.items() for sample in lines
    }
    numbers = {key: number for number, key in enumerate(questions)}
    asked, baselines = [*questions.values()], baselines_of(config, columns)
    return Evaluation(
        task=", ".join(config.harness.tasks),
        questions=asked,
        columns={column.name: _measured(column, samples[column.name], numbers, asked) for column in columns},
        baselines=baselines,
        scores=[_scored(score, scores, results, samples, numbers, baselines) for score in _scores(scores)],
        settings=concealed(config.resolved_settings),
        few_shot=config.harness.num_fewshot or 0,
    )


def _samples(folder: Path, results: Mapping[str, Any]) -> Samples:
    paths = {task: folder / f"samples_{task}.jsonl" for task in results["configs"]}
    return {
        task: [orjson.loads(line) for line in path.read_bytes().splitlines()]
        for task, path in paths.items()
        if path.is_file()
    }


def _question(task: str, sample: Sample) -> Question:
    arguments, target = sample["arguments"], sample["target"]
    prompt, *others = arguments[0]
    texts = tuple(argument[1] for argument in arguments if len(argument) > 1 and isinstance(argument[1], str))
    has_choices = len(texts) > 1 and isinstance(target, int) and 0 <= target < len(texts)
    return Question(
        key=str(sample["doc_id"]),
        place=f"{task}:{sample['doc_id']}",
        content={"text": prompt},
        references=() if has_choices else tuple(map(str, target if isinstance(target, list) else [target])),
        choices=texts if has_choices else (),
        correct=target if has_choices else 0,
        text=None if others else prompt,
    )


def _measured(
    column: Column, samples: Samples, numbers: Mapping[tuple[str, int], int], questions: Sequence[Question]
) -> MeasuredColumn:
    """The answers of a column, read in the first of several ways."""
    outputs: dict[int, tuple[Generated, ...]] = {}
    generation: dict[int, tuple[Answer, ...]] = {}
    measured = MeasuredColumn(column, outputs, generation, num_tokens=None)
    for task, lines in samples.items():
        for sample in lines:
            number = numbers[task, sample["doc_id"]]
            if number in outputs or number in measured.choices:
                continue
            question, responses = questions[number], sample["resps"]
            if question.choices:
                logprobs = tuple(response[0][0] for response in responses[: len(question.choices)])
                lengths = tuple(len(text.encode()) for text in question.choices)
                measured.choices[number] = (ChoiceScores(logprobs, lengths, question.correct),)
            elif responses and responses[0] and isinstance(responses[0][0], str):
                outputs[number] = (Generated(responses[0][0]),)
                read = sample["filtered_resps"][:1]
                answer = read[0] if read and isinstance(read[0], str) else None
                generation[number] = (Answer(answer, question.references),)
    return measured


def _scored(
    score: _Score,
    scores: Mapping[str, Scores],
    results: Mapping[str, Mapping[str, Any]],
    samples: Mapping[str, Samples],
    numbers: Mapping[tuple[str, int], int],
    baselines: Mapping[str, str],
) -> MetricScores:
    """A score of all columns; with differences where it follows from those of the questions."""
    columns = {
        name: {
            numbers[score.task, sample["doc_id"]]: (sample[score.metric],)
            for sample in tasks.get(score.task, ())
            if sample["filter"] == score.filtered and score.metric in sample
        }
        for name, tasks in samples.items()
    }
    harness = {name: _estimate(score, scores[name], column) for name, column in results.items()}
    is_better = [
        column["higher_is_better"].get(score.task, {}).get(score.metric) for column in results.values()
    ]
    values = [value for rows in columns.values() for (value,) in rows.values()]
    metric = _metric(score, values, "low" if False in is_better else "high")
    are_known = bool(values) and (all(map(_is_number, values)) or all(map(_is_pair, values)))
    if are_known and all(
        columns[name] and math.isclose(metric.of([*columns[name].values()]), estimate.value, rel_tol=1e-6)
        for name, estimate in harness.items()
    ):
        return scores_of(metric, columns, [None] * len(numbers), baselines)
    return MetricScores(metric, (), dict.fromkeys(harness, {}), harness, {})


def _estimate(score: _Score, scores: Scores, results: Mapping[str, Any]) -> Estimate:
    """As the harness has it."""
    value, stderr = score.value(scores), score.stderr(scores)
    if not isinstance(value, int | float):
        return Estimate(math.nan, 0, None, None)
    count = results["n-samples"].get(score.task, {}).get("effective", 0)
    if not isinstance(stderr, int | float):
        return Estimate(value, count, None, None)
    away = _OF_95_PERCENT * stderr
    return Estimate(value, count, stderr, Interval(value - away, value + away))


def _metric(score: _Score, values: Sequence[Any], best: Literal["high", "low"]) -> Metric:
    """The metric of a score, which has these values of questions."""
    are_numbers = all(map(_is_number, values))
    filtered = "" if score.filtered == UNFILTERED else f" ({score.filtered})"
    name = f"{score.metric}{filtered}"
    return Metric(
        name,
        f"{score.task}: {name}",
        "As the harness measures it.",
        by_sample(_sums),
        value=ratio if are_numbers else log2_ratio if score.metric.startswith("bits") else exp_ratio,
        best=best,
        scale=1.0 if are_numbers and all(0 <= value <= 1 for value in values) else 0.0,
        is_right_or_wrong=are_numbers and {*values} <= {0, 1},
    )


def _sums(value: Any) -> tuple[float, float]:
    """Sums of the value of a question: of a number, or of a log-probability and the units of its text."""
    return (float(value), 1.0) if _is_number(value) else (-float(value[0]), float(value[1]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
