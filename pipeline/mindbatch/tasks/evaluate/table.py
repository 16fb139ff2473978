"""Table printed by `mindbatch evaluate`: a row for each column, a score and its interval for each metric."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mindbatch.evaluation.scoring.bootstrap import CONFIDENCE, Estimate
from mindbatch.evaluation.scoring.differences import Difference
from mindbatch.evaluation.scoring.metric import Metric
from mindbatch.evaluation.scoring.scoreboard import MetricScores
from mindbatch.io.amounts import counted, decimal
from mindbatch.io.screen_text import printable
from mindbatch.tasks.drawn_table import add_row, drawn_in_parts, new_table
from mindbatch.tasks.evaluate.results import Evaluation

if TYPE_CHECKING:
    from rich.table import Table


def evaluation_page(evaluation: Evaluation) -> str:
    """The scores for people."""
    heading = f"{printable(evaluation.task)}: {counted(len(evaluation.questions), 'question')}"
    table = drawn_in_parts(evaluation.scores, partial(_table, evaluation))
    return "\n".join([heading, "", table, "", *_notes(evaluation)]).rstrip()


def _table(evaluation: Evaluation, scores: Sequence[MetricScores]) -> Table:
    table = new_table()
    table.add_column("", overflow="fold")
    for each in scores:
        table.add_column(each.metric.name, justify="right")
        table.add_column(f"{CONFIDENCE:.0%}", justify="left")
        if each.differences:
            table.add_column(f"against {printable(evaluation.baseline)}", justify="left")
    for column in evaluation.columns:
        cells = [printable(column.name)]
        for each in scores:
            cells += _cells(each, column.name)
        add_row(table, cells)
    return table


def _cells(scores: MetricScores, column: str) -> Iterator[str]:
    estimate = scores.estimates[column]
    yield score_text(scores.metric, estimate.value)
    yield interval_text(scores.metric, estimate)
    if scores.differences:
        found = scores.differences.get(column)
        yield "" if found is None else difference_text(scores.metric, found)


def score_text(metric: Metric[Any], value: float, sign: str = "") -> str:
    """A score: shares as percentages, all else with two digits."""
    if math.isnan(value):
        return "-"
    if not math.isfinite(value):
        return "infinite"
    return decimal(value, f"{sign}.1%" if metric.scale == 1.0 else f"{sign}.2f")


def interval_text(metric: Metric[Any], estimate: Estimate) -> str:
    """The interval of a score; nothing where there is none."""
    if estimate.interval is None:
        return ""
    return " to ".join(score_text(metric, end) for end in estimate.interval)


def difference_text(metric: Metric[Any], found: Difference) -> str:
    """A difference, with its p-value, or that it is within noise."""
    text = score_text(metric, found.value, "+")
    p_value = found.p_value if found.adjusted is None else found.adjusted
    if p_value is None:
        return f"{text} (too few rows to tell)"
    bound = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
    return f"{text} ({bound})" if found.is_beyond_chance else f"{text} (noise: {bound})"


def _notes(evaluation: Evaluation) -> Iterator[str]:
    for each in evaluation.scores:
        if each.unscored:
            names = ", ".join(map(printable, each.unscored))
            where = f" of {names}" if len(each.unscored) < len(evaluation.columns) else ""
            yield f"{each.metric.name}: nothing{where} was scored, for no question could be run"
        left_out = len(evaluation.questions) - len(each.rows)
        if left_out and each.rows:
            count = counted(left_out, "question")
            yield f"{each.metric.name}: {count} left out, which not every column could run"
    if any(found.adjusted is not None for each in evaluation.scores for found in each.differences.values()):
        yield "p: of no difference, after Holm's correction for the number of columns"
