"""A comparison as one HTML page that needs nothing else: no script, no network, no text taken as markup."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator

from mindbatch.evaluation.charts import Ranked, ranking, scatter
from mindbatch.evaluation.comparison import Comparison, StrategyReport
from mindbatch.evaluation.findings import alike, headlines, standing_out, untold
from mindbatch.evaluation.markup import Markup, element, joined
from mindbatch.evaluation.measures import MEASURES, PLOTTED
from mindbatch.evaluation.metrics import LARGEST_SET
from mindbatch.evaluation.page_style import STYLE
from mindbatch.evaluation.page_texts import texts

DOCTYPE = Markup("<!doctype html>\n")
SELF_BLEU_OF = {
    "samples": "the samples of each prompt",
    "prompts": "the first outputs of all prompts",
}


def page(comparison: Comparison) -> str:
    """The whole page."""
    body = element(
        "body",
        element("header", _header(comparison)),
        element("main", _texts(comparison), _table(comparison), _charts(comparison), _plot(comparison)),
        element("footer", _notes(comparison)),
    )
    return DOCTYPE + element("html", _head(comparison), body, lang="en")


def _head(comparison: Comparison) -> Markup:
    """The policy lets the browser load and run nothing, and take only this style sheet."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", _title(comparison)),
        element("style", Markup(STYLE)),
    )


def _title(comparison: Comparison) -> str:
    return f"{_count(len(comparison.strategies), 'decoding strategy', 'decoding strategies')} compared"


def _header(comparison: Comparison) -> Iterator[Markup]:
    setup = comparison.setup
    prompts = _count(len(comparison.prompts), "prompt", "prompts")
    yield element("h1", _title(comparison))
    yield element("p", f"{prompts} · {setup.model} · {_moment(setup.created)}", class_="quiet facts")
    found = [
        element("div", element("dt", each.title), element("dd", each.who), element("dd", each.number))
        for each in headlines(comparison)
    ]
    if found:
        yield element("dl", found, class_="headlines")
    for reason in untold(comparison):
        yield element("p", reason, class_="quiet")
    for names in alike(comparison):
        yield element("p", f"{', '.join(names[:-1])} and {names[-1]} gave the same outputs throughout.")
    failed = max(report.errors for report in comparison.strategies)
    if failed:
        yield element("p", f"{_count(failed, 'prompt', 'prompts')} could not be run.", class_="error")


def _moment(created: str) -> str:
    """A time in ISO 8601 as people read it."""
    return f"{created[:16].replace('T', ' ')} UTC"


def _charts(comparison: Comparison) -> Iterator[Markup]:
    yield element("h2", "Measure by measure")
    yield element(
        "p",
        "The best stands at the top and to the right. A full point is not behind the best one beyond chance. "
        "A line is where a value would lie with other prompts, 95 times in 100; for the speed it goes from "
        "the slowest to the fastest run.",
    )
    figures = []
    for measure in PLOTTED:
        leaders = standing_out(comparison, measure.field)
        chart = ranking(
            measure,
            [
                Ranked(
                    report.name,
                    measure.value(report.metrics),
                    report.intervals.get(measure.field),
                    report.name in leaders,
                )
                for report in comparison.strategies
            ],
        )
        caption = element("figcaption", measure.meaning)
        figures.append(element("figure", element("h3", measure.title), caption, chart))
    yield element("div", figures, class_="charts")


def _plot(comparison: Comparison) -> Iterator[Markup]:
    """Quality against diversity, of the strategies that have both measures; nothing for fewer than two."""
    found = [
        (report.name, (report.metrics.perplexity, report.metrics.distinct_2))
        for report in comparison.strategies
    ]
    points = [
        (name, (x, y)) for name, (x, y) in found if x is not None and math.isfinite(x) and y is not None
    ]
    if len(points) < 2:
        return
    yield element("h2", "Likely or varied")
    yield element(
        "p",
        "Left: the model finds the text likely. Top: few pairs of tokens come again, within an output or in "
        "another one.",
    )
    chart = scatter(
        "likely-or-varied",
        "Perplexity and distinct-2 of each strategy",
        [name for name, _ in points],
        [place for _, place in points],
        ("perplexity (likelier to the left)", "distinct-2 (more varied upwards)"),
    )
    yield element("figure", chart, class_="plot")


def _table(comparison: Comparison) -> Iterator[Markup]:
    yield element("h2", "All numbers")
    best = {measure.field: standing_out(comparison, measure.field) for measure in MEASURES}
    if any(best.values()):
        yield element(
            "p",
            "In bold, marked ●: the best, and those that are not behind it beyond chance.",
            class_="quiet",
        )
    head = element("tr", [element("th", text, scope="col") for text in _headings()])
    body = [
        element(
            "tr",
            element("th", report.name, scope="row"),
            [
                _cell(measure.shown(report.metrics), report.name in best[measure.field])
                for measure in MEASURES
            ],
            element("td", f"{report.metrics.seconds:.2f}"),
        )
        for report in comparison.strategies
    ]
    table = element("table", element("thead", head), element("tbody", body))
    # It scrolls by itself where it is wider than the page.
    yield element("div", table, class_="scroll", tabindex="0", role="region", aria_label="All numbers")
    yield element("h2", "Settings")
    yield element("dl", [_settings(report) for report in comparison.strategies], class_="settings")


def _headings() -> list[str]:
    return ["strategy", *(measure.heading for measure in MEASURES), "seconds"]


def _cell(number: str, is_best: bool) -> Markup:
    return element("td", f"● {number}", class_="best") if is_best else element("td", number)


def _settings(report: StrategyReport) -> Markup:
    """The strategy's kind, and its parameters that differ from their defaults."""
    given = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in report.decoding.items()]
    content = [element("dt", report.name), element("dd", ", ".join([report.strategy, *given]))]
    return joined(content)


def _texts(comparison: Comparison) -> Iterator[Markup]:
    yield element("h2", "The texts")
    yield element(
        "p",
        "What differs from the first text of a prompt is ",
        element("mark", "marked"),
        ".",
    )
    yield joined(texts(comparison))


def _notes(comparison: Comparison) -> Iterator[Markup]:
    yield element("h2", "How this was measured")
    for note in (
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
    ):
        yield element("p", note, class_="quiet")


def _timing(comparison: Comparison) -> str:
    setup = comparison.setup
    warm_up = (
        "Before any was timed, every strategy ran the first "
        f"{_count(setup.warm_up_prompts, 'prompt', 'prompts')}, so that the graphs for steps like theirs "
        "were compiled already."
        if setup.warm_up_prompts
        else "There was no warm-up: compiling is counted, most of it for the first strategy."
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


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
