"""Results of an evaluation: writes their files, with lm-evaluation-harness's field names, and the table."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from mindbatch.evaluation import metric_of
from mindbatch.evaluation.chance import CONFIDENCE, POWER, Interval, rows_needed, smallest_difference
from mindbatch.evaluation.metric import Generated, Metric
from mindbatch.evaluation.scores import Difference, MetricScores, scores_of
from mindbatch.io.amounts import counted, decimal, in_parts, table
from mindbatch.io.screen_text import printable
from mindbatch.io.storage import WholeFile, make_folder, write_whole
from mindbatch.tasks.evaluate.questions import Question
from mindbatch.tasks.evaluate.requests import MeasuredColumn
from mindbatch.tasks.evaluate.schema import RESULTS

FULL_METRICS = 6
"""Limit of metrics with intervals and p-values in the table; with more it has numbers and a mark."""
BEYOND_CHANCE = "*"
POINTS = 2.0
"""Difference, in percentage points, for which the report says how many questions are needed to show it."""


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Evaluation:
    """An evaluation with all of its questions, answers and scores.

    columns: results by the name of the column. baselines: name of the baseline, by the name of the column.
    settings: the settings as JSON, with each ${...} as written. timing_note: sentences on the speeds, if any.
    """

    task: str
    questions: Sequence[Question]
    columns: Mapping[str, MeasuredColumn]
    baselines: Mapping[str, str]
    scores: Sequence[MetricScores]
    settings: Mapping[str, Any]
    few_shot: int = 0
    timing_note: str = ""
    created: str = field(default_factory=_now)

    @property
    def baseline(self) -> str | None:
        """The baseline of all columns; None if there are several."""
        names = {base for name, base in self.baselines.items() if base != name}
        return next(iter(names or self.baselines)) if len(names) < 2 else None

    @cached_property  # it reads every text
    def alike(self) -> list[str]:
        """Sentences that name columns with the same texts for every question."""
        groups: dict[bytes, list[str]] = {}
        for name, column in self.columns.items():
            texts = sha256()
            for key in sorted(column.outputs):
                texts.update(orjson.dumps([key, *(output.text for output in column.outputs[key])]))
            if column.outputs:
                groups.setdefault(texts.digest(), []).append(name)
        return [
            f"{', '.join(names[:-1])} and {names[-1]} generated the same texts throughout"
            for names in groups.values()
            if len(names) > 1
        ]


def scores_by(
    metrics: Sequence[str],
    columns: Mapping[str, MeasuredColumn],
    questions: Sequence[Question],
    baselines: Mapping[str, str],
) -> list[MetricScores]:
    """Measures the columns by each of the metrics."""
    clusters = [question.cluster for question in questions]
    scores = []
    for metric in map(metric_of, metrics):
        samples = {name: getattr(column, metric.needs) for name, column in columns.items()}
        scores.append(scores_of(metric, samples, clusters, baselines))
    return scores


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Builds results.json: scores of every column, their differences from its baseline, and the settings."""
    return {
        "task": evaluation.task,
        "created": evaluation.created,
        "questions": len(evaluation.questions),
        "baseline": evaluation.baseline,
        "baselines": evaluation.baselines,
        "columns": {name: _column(evaluation, name) for name in evaluation.columns},
        "settings": evaluation.settings,
    }


def _column(evaluation: Evaluation, name: str) -> dict[str, Any]:
    measured = evaluation.columns[name]
    column = measured.column
    return {
        "folder": f"columns/{column.folder}",
        "checkpoint": column.checkpoint,
        "adapter": column.adapter,
        "decoding": column.decoding,
        "results": harness_scores(evaluation, name),
        "intervals": {
            scores.metric.name: _listed(scores.estimates[name].interval) for scores in evaluation.scores
        },
        "rows": {scores.metric.name: scores.estimates[name].num_rows for scores in evaluation.scores},
        "differences": {
            scores.metric.name: _difference(scores.differences[name])
            for scores in evaluation.scores
            if name in scores.differences
        },
        "generated_tokens": measured.num_tokens,
        "tokens_per_second": [*measured.speeds],
        "errors": len(measured.errors),
    }


def harness_scores(evaluation: Evaluation, column: str) -> dict[str, Any]:
    """Names the scores as lm-evaluation-harness does: `acc,none`, `acc_stderr,none`."""
    results: dict[str, Any] = {"alias": evaluation.task}
    for scores in evaluation.scores:
        estimate = scores.estimates[column]
        results[f"{scores.metric.name},none"] = _number(estimate.value)
        results[f"{scores.metric.name}_stderr,none"] = "N/A" if estimate.stderr is None else estimate.stderr
    return results


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "against": difference.base,
        "value": _number(difference.value),
        "interval": _listed(difference.interval),
        "test": difference.test,
        "p_value": difference.p_value,
        "p_value_adjusted": difference.adjusted,
        "beyond_chance": difference.is_beyond_chance,
        "gained": difference.gained,
        "lost": difference.lost,
        "smallest_found": None if not difference.stderr else smallest_difference(difference.stderr),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _listed(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [*interval]


def write_results(evaluation: Evaluation, folder: Path, *, samples: bool) -> list[Path]:
    """Writes results.json, and for each column results.json and samples as lm-evaluation-harness has them.

    Raises:
        StorageError: a file cannot be written.
    """
    written = [write_json(folder / RESULTS, as_json(evaluation))]
    for name, measured in evaluation.columns.items():
        home = folder / "columns" / measured.column.folder
        make_folder(home)
        write_json(home / RESULTS, _harness(evaluation, name))
        if samples:
            with WholeFile(home / f"samples_{evaluation.task}.jsonl") as file:
                for line in _samples(evaluation, name):
                    file.write(orjson.dumps(line) + b"\n")
    return written


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    write_whole(path, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return path


def _harness(evaluation: Evaluation, column: str) -> dict[str, Any]:
    task, count = evaluation.task, len(evaluation.questions)
    return {
        "results": {task: harness_scores(evaluation, column)},
        "group_subtasks": {task: []},
        "configs": {task: {"task": task, "num_fewshot": evaluation.few_shot, "metadata": {"version": 1.0}}},
        "versions": {task: 1.0},
        "n-shot": {task: evaluation.few_shot},
        "higher_is_better": {task: {e.metric.name: e.metric.best == "high" for e in evaluation.scores}},
        "n-samples": {task: {"original": count, "effective": count}},
        "config": {"model": "mindbatch", "model_args": {"column": column}, "limit": None},
        "date": evaluation.created,
        "task_hashes": {},
    }


def _samples(evaluation: Evaluation, column: str) -> Iterator[dict[str, Any]]:
    """Yields a line for each question: its prompt, the outputs, the answers read out of them, the scores."""
    measured = evaluation.columns[column]
    for number, question in enumerate(evaluation.questions):
        target = question.targets[0] if question.choices else [*question.targets]
        every = {scored.metric.name: scored.per_row[column].get(number) for scored in evaluation.scores}
        scores = {name: score for name, score in every.items() if score is not None}
        outputs = measured.outputs.get(number, ())
        texts: list[Any] = [output.text for output in outputs]
        logprobs = [logprob for chosen in measured.choices.get(number, ()) for logprob in chosen.logprobs]
        yield {
            "doc_id": number,
            "doc": {"key": question.key, "source": question.source},
            "target": target,
            "arguments": _arguments(measured, question),
            "resps": [texts or logprobs],
            "filtered_resps": [answer.text for answer in measured.generation.get(number, ())] or [None],
            "outputs": [_output(output) for output in outputs if output.token_ids],
            "filter": "none",
            "metrics": [*scores],
            "error": measured.errors.get(number),
            "doc_hash": _hash(question.source),
            "prompt_hash": _hash(question.prompt),
            "target_hash": _hash(str(target)),
        } | scores


def _output(output: Generated) -> dict[str, Any]:
    known = {name: fact for name, fact in output.facts.items() if fact is not None}
    return {"token_ids": [*output.token_ids], "logprob": _number(output.logprob), **known}


def _arguments(measured: MeasuredColumn, question: Question) -> dict[str, dict[str, str]]:
    """Lists the prompt of each request, and the text whose likelihood was measured behind it."""
    prompt, answers = question.prompt, question.choices or question.references[:1]
    if measured.continuations is None or question.text is not None:
        return {"gen_args_0": {"arg_0": prompt}}
    texts = [measured.scored_text(question, answer) for answer in answers]
    return {f"gen_args_{number}": {"arg_0": prompt, "arg_1": text} for number, text in enumerate(texts)}


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def evaluation_page(evaluation: Evaluation) -> str:
    heading = f"{printable(evaluation.task)}: {counted(len(evaluation.questions), 'question')}"
    scores = in_parts(evaluation.scores, partial(_table, evaluation))
    return "\n".join([heading, "", scores, "", *_notes(evaluation)]).rstrip()


def _table(evaluation: Evaluation, scores: Sequence[MetricScores]) -> list[str]:
    measured = evaluation.columns
    columns, numbers = [["", *map(printable, measured)]], list[int]()
    if evaluation.baseline is None:
        own = (base if base != name else "" for name, base in evaluation.baselines.items())
        columns.append(["baseline", *map(printable, own)])
    for metric_scores in scores:
        metric, estimates = metric_scores.metric, metric_scores.estimates
        differences = [metric_scores.differences.get(name) for name in measured]
        values = [metric.text(estimates[name].value) for name in measured]
        numbers.append(len(columns))
        if len(evaluation.scores) > FULL_METRICS:
            columns.append([f"{metric.name} ", *map(_marked, values, differences)])
            continue
        columns.append([metric.name, *values])
        intervals = (interval_text(metric, estimates[name].interval) for name in measured)
        columns.append([f"{CONFIDENCE:.0%}", *intervals])
        if metric_scores.differences:
            texts = [difference_text(metric, compared) if compared else "" for compared in differences]
            columns.append([f"against {_baseline_name(evaluation)}", *texts])
    is_last = scores[-1:] == evaluation.scores[-1:]
    if is_last and any(column.speeds for column in measured.values()):
        numbers += (len(columns), len(columns) + 1)
        columns.append(["tokens/s", *(speed_text(column.speed) for column in measured.values())])
        columns.append(["tokens", *(f"{column.num_tokens:,}" for column in measured.values())])
    return table([*zip(*columns, strict=True)], numbers, ruled=True)


def _baseline_name(evaluation: Evaluation) -> str:
    return "its baseline" if evaluation.baseline is None else printable(evaluation.baseline)


def _marked(value: str, difference: Difference | None) -> str:
    """Marks a number, or appends a space so that numbers stay aligned."""
    return value + (BEYOND_CHANCE if difference is not None and difference.is_beyond_chance else " ")


def speed_text(value: float | None) -> str:
    return "-" if value is None else decimal(value, ",.0f")


def interval_text(metric: Metric, interval: Interval | None, sign: str = "") -> str:
    """Formats the ends of an interval; nothing where there is none."""
    return " to ".join(metric.text(end, sign) for end in interval or ())


def difference_text(metric: Metric, difference: Difference) -> str:
    """Formats a difference with its p-value, and marks one that is noise."""
    text, p_value = metric.text(difference.value, "+"), difference.adjusted
    if p_value is None:
        return f"{text} (too few rows to tell)"
    bound = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
    return f"{text} ({bound})" if difference.is_beyond_chance else f"{text} (noise: {bound})"


def _notes(evaluation: Evaluation) -> Iterator[str]:
    for scores in evaluation.scores:
        if scores.unscored:
            names = ", ".join(map(printable, scores.unscored))
            where = f" of {names}" if len(scores.unscored) < len(evaluation.columns) else ""
            yield f"{scores.metric.name}: nothing{where} was scored, for no question could be run"
        left_out = len(evaluation.questions) - len(scores.rows)
        if left_out and scores.rows:
            count = counted(left_out, "question")
            yield f"{scores.metric.name}: {count} left out, which not every column could run"
        yield from _without_interval(scores) if len(evaluation.scores) <= FULL_METRICS else ()
    yield from map(printable, evaluation.alike)
    differences = [difference for scores in evaluation.scores for difference in scores.differences.values()]
    if len(evaluation.scores) > FULL_METRICS:
        if any(difference.is_beyond_chance for difference in differences):
            yield f"{BEYOND_CHANCE} differs from {_baseline_name(evaluation)} by more than chance"
        elif differences and all(difference.p_value is None for difference in differences):
            yield f"{counted(len(evaluation.questions), 'question')}: too few to tell differences from chance"
    elif any(difference.adjusted is not None for difference in differences):
        yield "p: of no difference, after Holm's correction for the number of columns"
    yield from filter(None, map(power_text, evaluation.scores))


def _without_interval(scores: MetricScores) -> Iterator[str]:
    """Yields a line naming the columns whose questions differ too little for an interval."""
    ran = {name: estimate for name, estimate in scores.estimates.items() if estimate.num_rows}
    unsure = [printable(name) for name, estimate in ran.items() if estimate.interval is None]
    if unsure:
        names = f" of {', '.join(unsure)}" if len(unsure) < len(ran) else ""
        yield f"{scores.metric.name}{names}: too few differing questions to tell an interval"


def power_text(scores: MetricScores) -> str:
    """Describes the smallest difference that these questions can show, and how many could show POINTS.

    Empty if that is unknown, or the metric is no percentage.
    """
    metric = scores.metric
    errors = [difference.stderr for difference in scores.differences.values() if difference.stderr]
    if not errors or not metric.scale:
        return ""
    count, points = len(scores.rows), POINTS / 100 * metric.scale
    shown = metric.text(smallest_difference(max(errors)))
    needed = rows_needed(max(errors), count, points)
    return (
        f"{metric.name}: {counted(count, 'question')} would show a difference of {shown} (in {POWER:.0%} of "
        f"such evaluations); {POINTS:g} points would take {needed:,}"
    )
