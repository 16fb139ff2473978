"""Columns over tasks of lm-evaluation-harness as an `Evaluation`: what the page is made of."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from mindbatch.evaluation.metric import Answer, ChoiceScores, FloatArray, Generated, Metric
from mindbatch.evaluation.scores import Estimate, Interval, MetricScores, scores_of
from mindbatch.io.screen_text import concealed
from mindbatch.tasks.evaluate.columns import Column, baseline_of
from mindbatch.tasks.evaluate.measured import MeasuredColumn
from mindbatch.tasks.evaluate.questions import Question
from mindbatch.tasks.evaluate.results import Evaluation
from mindbatch.tasks.evaluate.schema import RESULTS, EvaluateConfig

UNFILTERED = "none"
_OF_95_PERCENT = 1.96
"""Standard errors on both sides of a value."""

Sample = Mapping[str, Any]
Samples = Mapping[str, Sequence[Sample]]
"""By task: a line for each question and filter, as the harness writes them."""


class _Score(NamedTuple):
    """One of the harness's scores, of one task and one way of reading answers."""

    task: str
    metric: str
    filtered: str


def harness_evaluation(config: EvaluateConfig, columns: Sequence[Column]) -> Evaluation:
    """The columns, all of which are finished, with every answer beside the others."""
    home = Path(config.output.dir or "") / "columns"
    results = {column.name: orjson.loads((home / column.folder / RESULTS).read_bytes()) for column in columns}
    samples = {column.name: _samples(home / column.folder, results[column.name]) for column in columns}
    first = samples[columns[0].name]
    questions = {
        (task, sample["doc_id"]): _question(task, sample) for task, lines in first.items() for sample in lines
    }
    numbers = {key: number for number, key in enumerate(questions)}
    baseline = baseline_of(config, list(columns)).name
    return Evaluation(
        task=", ".join(config.harness.tasks),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        questions=[*questions.values()],
        columns=columns,
        measured={name: _measured(tasks, numbers, [*questions.values()]) for name, tasks in samples.items()},
        baseline=baseline,
        scores=[_scored(score, results, samples, numbers, baseline) for score in _scores(results.values())],
        few_shot=config.harness.num_fewshot or 0,
        settings=concealed(config.resolved_settings),
    )


def _samples(folder: Path, results: Mapping[str, Any]) -> Samples:
    paths = {task: folder / f"samples_{task}.jsonl" for task in results["configs"]}
    return {
        task: [orjson.loads(line) for line in path.read_bytes().splitlines()]
        for task, path in paths.items()
        if path.is_file()
    }


def _scores(columns: Any) -> list[_Score]:
    """Every score that any column has, but for standard errors and names of tasks."""
    scores = dict[_Score, None]()
    for results in columns:
        for task, metrics in {**results["results"], **results.get("groups", {})}.items():
            for name in metrics:
                metric, comma, filtered = name.partition(",")
                if comma and not metric.endswith("_stderr"):
                    scores[_Score(task, metric, filtered)] = None
    return [*scores]


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
    samples: Samples, numbers: Mapping[tuple[str, int], int], questions: Sequence[Question]
) -> MeasuredColumn:
    """The answers of a column, read in the first of several ways."""
    column = MeasuredColumn(num_tokens=None)
    for task, lines in samples.items():
        for sample in lines:
            number = numbers[task, sample["doc_id"]]
            if number in column.outputs or number in column.choices:
                continue
            question, responses = questions[number], sample["resps"]
            if question.choices:
                logprobs = tuple(response[0][0] for response in responses[: len(question.choices)])
                lengths = tuple(len(text.encode()) for text in question.choices)
                column.choices[number] = ChoiceScores(logprobs, lengths, question.correct)
            elif responses and responses[0] and isinstance(responses[0][0], str):
                column.outputs[number] = (Generated(responses[0][0]),)
                read = sample["filtered_resps"][:1]
                answer = read[0] if read and isinstance(read[0], str) else None
                column.generation[number] = (Answer(answer, question.references),)
    return column


def _scored(
    score: _Score,
    results: Mapping[str, Any],
    samples: Mapping[str, Samples],
    numbers: Mapping[tuple[str, int], int],
    baseline: str,
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
    harness = {name: _estimate(column, score) for name, column in results.items()}
    is_better = [
        column["higher_is_better"].get(score.task, {}).get(score.metric) for column in results.values()
    ]
    metric = _metric(
        score, [value for rows in columns.values() for (value,) in rows.values()], False in is_better
    )
    if metric.sums_known and all(
        columns[name] and math.isclose(metric.of([*columns[name].values()]), estimate.value, rel_tol=1e-6)
        for name, estimate in harness.items()
    ):
        return scores_of(metric, columns, [None] * len(numbers), baseline)
    return MetricScores(metric, (), dict.fromkeys(harness, ()), harness, {})


def _estimate(results: Mapping[str, Any], score: _Score) -> Estimate:
    """As the harness has it."""
    scores = {**results["results"], **results.get("groups", {})}.get(score.task, {})
    value = scores.get(f"{score.metric},{score.filtered}")
    stderr = scores.get(f"{score.metric}_stderr,{score.filtered}")
    count = results["n-samples"].get(score.task, {}).get("effective", 0)
    if not isinstance(value, int | float):
        return Estimate(math.nan, 0, None, None)
    if not isinstance(stderr, int | float):
        return Estimate(value, count, None, None)
    away = _OF_95_PERCENT * stderr
    return Estimate(value, count, stderr, Interval(value - away, value + away))


class _HarnessMetric(Metric[Any]):
    """As the harness measures it."""

    needs = "generation"
    sums_known = True

    def sums(self, sample: Any) -> tuple[float, ...]:
        return (
            (float(sample), 1.0) if isinstance(sample, int | float) else (float(sample[0]), float(sample[1]))
        )


class _Perplexity(_HarnessMetric):
    """exp of the mean negative log-probability, as the harness measures it."""

    def value(self, sums: FloatArray) -> FloatArray:
        return np.asarray(np.exp(-super().value(sums)))


class _Bits(_HarnessMetric):
    """-log2 of the probability, as the harness measures it."""

    def value(self, sums: FloatArray) -> FloatArray:
        return np.asarray(-super().value(sums) / np.log(2.0))


def _metric(score: _Score, values: Sequence[Any], is_low_best: bool) -> _HarnessMetric:
    """The metric of a score; `sums_known` if its value of any questions follows from these values."""
    are_numbers = all(isinstance(value, int | float) for value in values)
    are_pairs = all(
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(number, int | float) for number in value)
        for value in values
    )
    kind = _HarnessMetric
    if are_pairs and not are_numbers:
        kind = _Bits if score.metric.startswith("bits") else _Perplexity
    filtered = "" if score.filtered == UNFILTERED else f" ({score.filtered})"
    settled = {
        "__doc__": kind.__doc__,
        "name": score.metric if not filtered else f"{score.metric}{filtered}",
        "title": f"{score.task}: {score.metric}{filtered}",
        "best": "low" if is_low_best else "high",
        "scale": 1.0 if are_numbers and all(0 <= value <= 1 for value in values) else 0.0,
        "is_right_or_wrong": are_numbers and {*values} <= {0, 1},
        "sums_known": bool(values) and (are_numbers or are_pairs),
    }
    made: _HarnessMetric = type(kind.__name__, (kind,), settled)()
    return made
