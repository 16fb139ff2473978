"""The headlines of a comparison: which strategy stands out in what."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mindbatch.evaluation.comparison import Comparison, StrategyReport
from mindbatch.evaluation.measures import MEASURES

BY_FIELD = {measure.field: measure for measure in MEASURES}
_HEADLINES: tuple[tuple[str, str, Callable[[Sequence[float]], float]], ...] = (
    ("Likeliest text", "perplexity", min),
    ("Most varied", "distinct_2", max),
    ("Least repetitive", "repetition", min),
    ("Fastest", "tokens_per_second", max),
)


@dataclass(frozen=True)
class Finding:
    """`title`: who it is, and the number that says so."""

    title: str
    who: str
    number: str


def headlines(comparison: Comparison) -> list[Finding]:
    """Who stands out in each kind of measure; nobody where all are equal."""
    found = []
    for title, field, best in _HEADLINES:
        measure = BY_FIELD[field]
        values = {report.name: measure.value(report.metrics) for report in comparison.strategies}
        known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        written = {name: measure.written(value) for name, value in known.items()}
        if len(set(written.values())) < 2:
            continue
        top = measure.written(best(list(known.values())))
        who = [name for name in known if written[name] == top]
        found.append(Finding(title, ", ".join(who), f"{measure.heading} {top}"))
    return found


def alike(comparison: Comparison) -> Iterator[list[str]]:
    """The names of strategies that gave the same outputs for every prompt, in groups of two and more."""
    groups: dict[tuple[tuple[tuple[int, ...], ...], ...], list[str]] = {}
    for report in comparison.strategies:
        groups.setdefault(_outputs(report), []).append(report.name)
    return (names for outputs, names in groups.items() if len(names) > 1 and any(outputs))


def _outputs(report: StrategyReport) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return tuple(tuple(tuple(output.token_ids) for output in row.outputs) for row in report.prompts)
