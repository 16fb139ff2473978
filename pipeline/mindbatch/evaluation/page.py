"""A comparison as one HTML page that needs nothing else: no script, no network, no text taken as markup."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from markupsafe import Markup

from mindbatch.evaluation.charts import Ranked, ranking, scatter
from mindbatch.evaluation.comparison import Comparison, MeasuredOutput, PromptReport, StrategyReport
from mindbatch.evaluation.findings import BEST, HOW_MARKED, LEVEL, alike, headlines, marks_of, untold
from mindbatch.evaluation.measures import MEASURES, PLOTTED, Measure
from mindbatch.evaluation.metrics import LARGEST_SET
from mindbatch.evaluation.rendering import TEMPLATES, content_policy, rendered
from mindbatch.evaluation.word_changes import Stretch, stretches
from mindbatch.io.amounts import decimal

SELF_BLEU_OF = {
    "samples": "the samples of each prompt",
    "prompts": "the first outputs of all prompts",
}
_MARKS = {BEST: "●", LEVEL: LEVEL, None: ""}
OPEN = 3
"""Prompts whose texts are shown from the start; the others unfold."""


@dataclass
class _Card:
    """Outputs of a strategy for a prompt, or its error."""

    name: str
    error: str | None
    outputs: list[_Output] = field(default_factory=list)


@dataclass(frozen=True)
class _Output:
    """One text: a line about it, and its stretches, shared with the first text or not, or a remark."""

    facts: str
    remark: str = ""
    stretches: tuple[Stretch, ...] = ()


def page(comparison: Comparison) -> str:
    """The whole page. Its policy lets the browser load and run nothing, and take only this style sheet."""
    setup, style = comparison.setup, style_sheet()
    failed = max(report.errors for report in comparison.strategies)
    marks = {measure.field: marks_of(comparison, measure.field) for measure in MEASURES}
    filled = rendered(
        "page.html.j2",
        policy=content_policy(style),
        style=Markup(style),
        title=f"{_count(len(comparison.strategies), 'decoding strategy', 'decoding strategies')} compared",
        facts=f"{_prompts(len(comparison.prompts))} · {setup.model} · {moment(setup.created)}",
        headlines=[*headlines(comparison)],
        untold=[*untold(comparison)],
        alike=[f"{', '.join(names[:-1])} and {names[-1]}" for names in alike(comparison)],
        failed=_prompts(failed) if failed else "",
        num_open=OPEN,
        prompts=[
            {"text": _prompt_text(prompt), "cards": _cards(comparison, position)}
            for position, prompt in enumerate(comparison.prompts)
        ],
        are_marked=any(marks.values()),
        how_marked=HOW_MARKED,
        best=_MARKS[BEST],
        headings=["strategy", *(measure.heading for measure in MEASURES), "seconds"],
        rows=[
            {
                "name": report.name,
                "numbers": [
                    (measure.shown(report.metrics), _MARKS[marks[measure.field].get(report.name)])
                    for measure in MEASURES
                ],
                "seconds": f"{report.metrics.seconds:.2f}",
                "settings": _settings(report),
            }
            for report in comparison.strategies
        ],
        how_to_read="The best stands at the top and to the right. A full point is not behind the best one "
        "beyond chance. A line is where a value would lie with other prompts, 95 times in 100; for the speed "
        "it goes from the slowest to the fastest run.",
        charts=[(measure, _chart(comparison, measure)) for measure in PLOTTED],
        plot=_plot(comparison),
        notes=[*_notes(comparison)],
    )
    return str(filled)


def style_sheet() -> str:
    """The style sheet as it stands in the page."""
    return "\n" + (TEMPLATES / "style.css").read_text(encoding="utf-8")


def moment(created: str) -> str:
    """A time in ISO 8601 as people read it."""
    return f"{created[:16].replace('T', ' ')} UTC"


def _prompt_text(prompt: PromptReport) -> str:
    if prompt.prompt is not None:
        return prompt.prompt
    ids = " ".join(map(str, prompt.prompt_token_ids))
    return f"token ids {ids}" if ids else "a prompt that cannot run"


def _cards(comparison: Comparison, position: int) -> list[_Card]:
    """A card for each strategy; the first that has an output is what the others are compared with."""
    cards: list[_Card] = []
    reference: tuple[str, MeasuredOutput] | None = None
    for report in comparison.strategies:
        row = report.prompts[position]
        card = _Card(report.name, row.error)
        for output in row.outputs:
            card.outputs.append(_output(output, len(row.outputs) > 1, reference))
            reference = reference or (report.name, output)
        cards.append(card)
    return cards


def _output(output: MeasuredOutput, several: bool, reference: tuple[str, MeasuredOutput] | None) -> _Output:
    facts = _facts(output, several)
    if not output.text.strip():
        return _Output(facts, "(no text)")
    if reference is None:
        return _Output(facts, stretches=(Stretch(output.text, True),))
    name, other = reference
    if output.text == other.text:
        return _Output(facts, f"the same text as {name}")
    return _Output(facts, stretches=tuple(stretches(output.text, other.text)))


def _facts(output: MeasuredOutput, several: bool) -> str:
    """One line about an output."""
    facts = [f"#{output.rank or output.index + 1}"] if several else []
    facts.append(f"log-prob {decimal(output.logprob, '.1f')}")
    if output.perplexity is not None:
        facts.append(f"perplexity {output.perplexity:.2f}")
    if output.repetition is not None:
        facts.append(f"repetition {output.repetition:.2f}")
    if output.score is not None:
        facts.append(f"score {decimal(output.score, '.3f')}")
    ends = "ended by itself" if output.finish_reason == "stop" else "cut at its limit"
    return " · ".join([*facts, f"{len(output.token_ids)} tokens, {ends}"])


def _settings(report: StrategyReport) -> str:
    """The strategy's kind, and its parameters that differ from their defaults."""
    given = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in report.decoding.items()]
    return ", ".join([report.strategy, *given])


def _chart(comparison: Comparison, measure: Measure) -> Markup:
    leaders = comparison.leaders.get(measure.field)
    return ranking(
        measure,
        [
            Ranked(
                report.name,
                measure.value(report.metrics),
                report.intervals.get(measure.field),
                leaders is None or report.name in leaders,
            )
            for report in comparison.strategies
        ],
    )


def _plot(comparison: Comparison) -> Markup | None:
    """Quality against diversity, of the strategies that have both measures; None for fewer than two."""
    found = [
        (report.name, (report.metrics.perplexity, report.metrics.distinct_2))
        for report in comparison.strategies
    ]
    points = [
        (name, (x, y)) for name, (x, y) in found if x is not None and math.isfinite(x) and y is not None
    ]
    if len(points) < 2:
        return None
    return scatter(
        "likely-or-varied",
        "Perplexity and distinct-2 of each strategy",
        [name for name, _ in points],
        [place for _, place in points],
        ("perplexity (likelier to the left)", "distinct-2 (more varied upwards)"),
    )


def _notes(comparison: Comparison) -> Iterator[str]:
    """Yields notes on how this was measured."""
    yield from (
        "Probabilities are those of the model's raw logits, before any processor, penalty or temperature. "
        "Perplexity is exp(-log-probability / tokens) over all tokens of a strategy, the end token included. "
        "A low perplexity is no sign of good text: the likeliest texts are often dull and repeat themselves "
        "(Holtzman et al. 2020).",
        "distinct-n is that of Li et al. 2016 and repetition is seq-rep-4 of Welleck et al. 2020, with the "
        "model's tokens as words. Both depend on how much text there is, so they are measured on as many "
        "outputs and tokens for each prompt as every strategy has: "
        f"{comparison.tokens_compared:,} tokens of each.",
        "Differences are told from chance by random halves of the prompts (McCarthy 1969): a strategy is "
        "behind the best one if it is so in 97.5 of 100 of them, or if its runs are all slower. With many "
        "strategies and measures some differences pass by chance.",
        f"Self-BLEU (Zhu et al. 2018) is the mean BLEU, by sacrebleu, of each text against the others among "
        f"{SELF_BLEU_OF[comparison.self_bleu_among]}, of at most {LARGEST_SET} texts.",
        _timing(comparison),
    )


def _timing(comparison: Comparison) -> str:
    setup = comparison.setup
    warm_up = (
        "Before any was timed, every strategy ran the first "
        f"{_prompts(setup.warm_up_prompts)}, so that what only "
        "first steps take, as compiling graphs where the kernels need them, is not counted."
        if setup.warm_up_prompts
        else "There was no warm-up: what only first steps take is counted, most of it for the first strategy."
    )
    caching = (
        "Prefix caching was on, which favours every run but the first."
        if setup.prefix_caching
        else "Prefix caching was off, so that no strategy found its prompts in the cache."
    )
    times = _count(len(comparison.strategies[0].timings), "time", "times, by turns")
    return (
        f"Each strategy was timed {times}, by itself, with up to {setup.batch_size} sequences in a batch; "
        f"the median counts. {warm_up} {caching} Tokens that a search drops again are not counted."
    )


def _prompts(number: int) -> str:
    return _count(number, "prompt", "prompts")


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
