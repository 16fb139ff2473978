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


@dataclass(frozen=True)
class Finding:
    """`title`: who it is, and the number that says so."""

    title: str
    who: str
    number: str


def headlines(comparison: Comparison) -> list[Finding]:
    """Who stands out beyond noise in each kind of measure; nobody where that cannot be told."""
    found = []
    for title, field in _HEADLINES:
        measure, who = BY_FIELD[field], standing_out(comparison, field)
        if who:
            values = [measure.value(each.metrics) for each in comparison.strategies if each.name in who]
            numbers = dict.fromkeys(map(measure.written, values))
            found.append(Finding(title, ", ".join(who), f"{measure.heading} {', '.join(numbers)}"))
    return found


def standing_out(comparison: Comparison, field: str) -> list[str]:
    """The strategies that lead in a measure, where others are behind them beyond noise."""
    leaders = comparison.leaders.get(field, [])
    return leaders if len(leaders) < len(comparison.strategies) else []


def untold(comparison: Comparison) -> list[str]:
    """Why strategies are not told apart, a sentence for each reason."""
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
