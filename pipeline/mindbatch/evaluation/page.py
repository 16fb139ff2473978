"""A comparison as one HTML page that needs nothing else: no script, no network, no text taken as markup."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Sequence

from mindbatch.evaluation.charts import bar_chart, scatter
from mindbatch.evaluation.comparison import Comparison, StrategyReport
from mindbatch.evaluation.findings import alike, headlines
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
        element("main", _charts(comparison), _plot(comparison), _table(comparison), _texts(comparison)),
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
    for names in alike(comparison):
        yield element("p", f"{', '.join(names[:-1])} and {names[-1]} gave the same outputs throughout.")
    failed = max(report.errors for report in comparison.strategies)
    if failed:
        yield element("p", f"{_count(failed, 'prompt', 'prompts')} could not be run.", class_="error")


def _moment(created: str) -> str:
    """A time in ISO 8601 as people read it."""
    return f"{created[:16].replace('T', ' ')} UTC"


def _charts(comparison: Comparison) -> Iterator[Markup]:
    names = [report.name for report in comparison.strategies]
    yield element("h2", "Measure by measure")
    figures = []
    for measure in PLOTTED:
        values = [measure.value(report.metrics) for report in comparison.strategies]
        chart = bar_chart(measure, names, values)
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
        ("perplexity", "distinct-2"),
    )
    yield element("figure", chart, class_="plot")


def _table(comparison: Comparison) -> Iterator[Markup]:
    yield element("h2", "All numbers")
    yield _rows(
        "All numbers",
        ["strategy", *(measure.heading for measure in MEASURES), "seconds"],
        [
            [
                report.name,
                *(measure.shown(report.metrics) for measure in MEASURES),
                f"{report.metrics.seconds:.2f}",
            ]
            for report in comparison.strategies
        ],
    )
    yield element("h2", "Settings")
    yield element("dl", [_settings(report) for report in comparison.strategies], class_="settings")


def _rows(label: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """A table, which scrolls by itself where it is wider than the page."""
    head = element("tr", [element("th", heading, scope="col") for heading in headings])
    body = [
        element("tr", element("th", name, scope="row"), [element("td", cell) for cell in cells])
        for name, *cells in rows
    ]
    table = element("table", element("thead", head), element("tbody", body))
    return element("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


def _settings(report: StrategyReport) -> Markup:
    """The strategy's kind, and its parameters that differ from their defaults."""
    given = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in report.decoding.items()]
    content = [element("dt", report.name), element("dd", ", ".join([report.strategy, *given]))]
    return joined(content)


def _texts(comparison: Comparison) -> Iterator[Markup]:
    yield element("h2", "The texts")
    yield element(
        "p",
        "Grey is what a text has in common with the first one of its prompt; ",
        element("mark", "marked"),
        " is what it has not. A text with neither has nothing in common with it.",
    )
    yield joined(texts(comparison))


def _notes(comparison: Comparison) -> Iterator[Markup]:
    setup = comparison.setup
    yield element("h2", "How this was measured")
    for note in (
        "Probabilities are those of the model's raw logits, before any processor, penalty or temperature. "
        "Perplexity is exp(-log-probability / tokens) over all tokens of a strategy, the end token included. "
        "A low perplexity is no sign of good text: the likeliest texts are often dull and repeat themselves "
        "(Holtzman et al. 2020).",
        "distinct-n is that of Li et al. 2016 and repetition is seq-rep-4 of Welleck et al. 2020, with the "
        "model's tokens as words. distinct-n falls as there is more text: it compares strategies only where "
        "they returned about as many tokens.",
        f"Self-BLEU (Zhu et al. 2018) is the mean BLEU, by sacrebleu, of each text against the others among "
        f"{SELF_BLEU_OF[comparison.self_bleu_among]}, of at most {LARGEST_SET} texts.",
        _timing(setup.warm_up_prompts, setup.prefix_caching, setup.batch_size),
    ):
        yield element("p", note, class_="quiet")


def _timing(warm_up_prompts: int, prefix_caching: bool, batch_size: int) -> str:
    warm_up = (
        f"Before any was timed, every strategy ran the first {_count(warm_up_prompts, 'prompt', 'prompts')}, "
        "so that the graphs for steps like theirs were compiled already."
        if warm_up_prompts
        else "There was no warm-up: compiling is counted, most of it for the first strategy."
    )
    caching = (
        "Prefix caching was on, which favours every strategy but the first."
        if prefix_caching
        else "Prefix caching was off, so that no strategy found its prompts in the cache."
    )
    return (
        f"Each strategy was timed once, by itself, with up to {batch_size} sequences in a batch. {warm_up} "
        f"{caching} Tokens that a search drops again are not counted."
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
