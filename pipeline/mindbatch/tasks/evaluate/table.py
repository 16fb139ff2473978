"""Table printed by `mindbatch evaluate`: a row for each column, a score and its interval for each metric."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

from mindbatch.evaluation.metric import Metric
from mindbatch.evaluation.scores import (
    CONFIDENCE,
    POWER,
    Difference,
    Estimate,
    MetricScores,
    rows_needed,
    smallest_difference,
)
from mindbatch.io.amounts import counted, decimal
from mindbatch.io.screen_text import printable
from mindbatch.tasks.evaluate.measured import MeasuredColumn
from mindbatch.tasks.evaluate.results import Evaluation

FULL_METRICS = 6
"""With more metrics the table has a number for each, and a mark in place of intervals and p-values."""
BEYOND_CHANCE = "*"
POINTS = 2.0
"""Points of a hundred of which it is said how many questions would show them."""


def evaluation_page(evaluation: Evaluation) -> str:
    heading = f"{printable(evaluation.task)}: {counted(len(evaluation.questions), 'question')}"
    scores = in_parts(evaluation.scores, partial(_table, evaluation))
    return "\n".join([heading, "", scores, "", *_notes(evaluation)]).rstrip()


def _table(evaluation: Evaluation, scores: Sequence[MetricScores]) -> list[str]:
    is_full = len(evaluation.scores) <= FULL_METRICS
    heads, numbers = [""], list[int]()
    for metric_scores in scores:
        numbers.append(len(heads))
        heads.append(metric_scores.metric.name + " " * (not is_full))
        if is_full:
            heads.append(f"{CONFIDENCE:.0%}")
        if is_full and metric_scores.differences:
            heads.append(f"against {printable(evaluation.baseline)}")
    is_last = scores[-1:] == evaluation.scores[-1:]
    is_timed = is_last and any(measured.speeds for measured in evaluation.measured.values())
    if is_timed:
        numbers += (len(heads), len(heads) + 1)
        heads += ("tokens/s", "tokens")
    rows = [heads]
    for column in evaluation.columns:
        cells = [printable(column.name)]
        for metric_scores in scores:
            cells += (
                _cells(metric_scores, column.name) if is_full else [_short_cell(metric_scores, column.name)]
            )
        rows.append(cells + (_timed(evaluation.measured[column.name]) if is_timed else []))
    return table(rows, numbers, ruled=True)


def _cells(scores: MetricScores, column: str) -> Iterator[str]:
    estimate = scores.estimates[column]
    yield score_text(scores.metric, estimate.value)
    yield interval_text(scores.metric, estimate)
    if scores.differences:
        difference = scores.differences.get(column)
        yield "" if difference is None else difference_text(scores.metric, difference)


def _short_cell(scores: MetricScores, column: str) -> str:
    """The number; a mark or a space stands behind it, so that numbers stay aligned."""
    difference = scores.differences.get(column)
    mark = BEYOND_CHANCE if difference is not None and difference.is_beyond_chance else " "
    return score_text(scores.metric, scores.estimates[column].value) + mark


def _timed(measured: MeasuredColumn) -> list[str]:
    return [speed_text(median(measured.speeds)) if measured.speeds else "-", f"{measured.num_tokens or 0:,}"]


def speed_text(value: float | None) -> str:
    """Tokens per second."""
    return "-" if value is None else decimal(value, ",.0f")


def score_text(metric: Metric[Any], value: float, sign: str = "") -> str:
    """A score: shares as percentages, all else with the digits of its metric."""
    if math.isnan(value):
        return "-"
    if not math.isfinite(value):
        return "infinite"
    return decimal(value, f"{sign}.1%" if metric.scale == 1.0 else f"{sign}{metric.digits}")


def interval_text(metric: Metric[Any], estimate: Estimate) -> str:
    """The interval of a score; nothing where there is none."""
    if estimate.interval is None:
        return ""
    return " to ".join(score_text(metric, end) for end in estimate.interval)


def difference_text(metric: Metric[Any], difference: Difference) -> str:
    """A difference, with its p-value, or that it is within noise."""
    text = score_text(metric, difference.value, "+")
    p_value = difference.p_value if difference.adjusted is None else difference.adjusted
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
    for group in evaluation.alike:
        *others, last = map(printable, group)
        yield f"{', '.join(others)} and {last} generated the same texts throughout"
    differences = [difference for scores in evaluation.scores for difference in scores.differences.values()]
    if len(evaluation.scores) > FULL_METRICS:
        if any(difference.is_beyond_chance for difference in differences):
            yield f"{BEYOND_CHANCE} differs from {printable(evaluation.baseline)} by more than chance"
        elif differences and all(difference.p_value is None for difference in differences):
            yield f"{counted(len(evaluation.questions), 'question')}: too few to tell differences from chance"
    elif any(difference.adjusted is not None for difference in differences):
        yield "p: of no difference, after Holm's correction for the number of columns"
    yield from filter(None, map(power_text, evaluation.scores))


def power_text(scores: MetricScores) -> str:
    """The difference that these questions would show, and how many would show POINTS; empty where it is not
    known, or the metric has no points."""
    metric = scores.metric
    errors = [difference.stderr for difference in scores.differences.values() if difference.stderr]
    if not errors or not metric.scale:
        return ""
    count, points = len(scores.rows), POINTS / 100 * metric.scale
    shown = score_text(metric, smallest_difference(max(errors)))
    needed = rows_needed(max(errors), count, points)
    return (
        f"{metric.name}: {counted(count, 'question')} would show a difference of {shown} (in {POWER:.0%} of "
        f"such evaluations); {POINTS:g} points would take {needed:,}"
    )
