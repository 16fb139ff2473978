"""The headlines of a comparison: which strategy stands out in what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mindbatch.evaluation.comparison import Comparison, StrategyReport
from mindbatch.evaluation.measures import MEASURES
from mindbatch.evaluation.noise import FEWEST_PROMPTS, FEWEST_TIMINGS

BY_FIELD = {measure.field: measure for measure in MEASURES}
_HEADLINES = (
    ("Likeliest text", "perplexity"),
    ("Most varied", "distinct_2"),
    ("Least repetitive", "repetition"),
    ("Fastest", "tokens_per_second"),
)


BEST, LEVEL = "*", "~"
"""Marks of the best value, and of those that are not told from it."""
HOW_MARKED = f"the best; {LEVEL} not behind it beyond chance"


@dataclass(frozen=True)
class Finding:
    """`title`: who it is, and the number that says so. level: those that are not told from it, each with its
    own."""

    title: str
    who: str
    number: str
    level: str = ""


def headlines(comparison: Comparison) -> list[Finding]:
    """Finds who stands out beyond noise in each kind of measure; nobody where that cannot be told."""
    found = []
    for title, field in _HEADLINES:
        measure, marks = BY_FIELD[field], marks_of(comparison, field)
        numbers = {each.name: measure.shown(each.metrics) for each in comparison.strategies}
        best = [name for name, mark in marks.items() if mark == BEST]
        level = [f"{name} {numbers[name]}" for name, mark in marks.items() if mark == LEVEL]
        if best:
            number = f"{measure.heading} {numbers[best[0]]}"
            found.append(Finding(title, ", ".join(best), number, ", ".join(level)))
    return found


def marks_of(comparison: Comparison, field: str) -> dict[str, str]:
    """The marks of the strategies that lead in a measure, where others are behind them beyond noise: BEST for
    those whose number is the best as it is shown, LEVEL for others that are not told from it."""
    leaders, measure = comparison.leaders.get(field, []), BY_FIELD[field]
    if not leaders:
        return {}
    sign = -1.0 if measure.best == "low" else 1.0
    numbers = {each.name: measure.shown(each.metrics) for each in comparison.strategies}
    values = {each.name: sign * (measure.value(each.metrics) or 0.0) for each in comparison.strategies}
    best = numbers[max(leaders, key=lambda name: values[name])]
    marks = {
        name: BEST if number == best else LEVEL
        for name, number in numbers.items()
        if number == best or name in leaders
    }
    return marks if len(marks) < len(numbers) else {}


def untold(comparison: Comparison) -> list[str]:
    """Explains why strategies are not told apart, a sentence for each reason."""
    reasons = []
    count = len(comparison.prompts)
    if count < FEWEST_PROMPTS:
        reasons.append(
            f"{count} prompt{'s are' if count > 1 else ' is'} too few to tell differences from chance: with "
            f"{FEWEST_PROMPTS} or more the best values are marked."
        )
    if any(len(report.timings) < FEWEST_TIMINGS for report in comparison.strategies):
        reasons.append(
            f"Timed fewer than {FEWEST_TIMINGS} times, no strategy is called the fastest "
            f"(timings={FEWEST_TIMINGS})."
        )
    return reasons


def alike(comparison: Comparison) -> Iterator[list[str]]:
    """The names of strategies that gave the same outputs for every prompt, in groups of two and more."""
    groups: dict[tuple[tuple[tuple[int, ...], ...], ...], list[str]] = {}
    for report in comparison.strategies:
        groups.setdefault(_outputs(report), []).append(report.name)
    return (names for outputs, names in groups.items() if len(names) > 1 and any(outputs))


def _outputs(report: StrategyReport) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return tuple(tuple(tuple(output.token_ids) for output in row.outputs) for row in report.prompts)
