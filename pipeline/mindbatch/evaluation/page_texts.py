"""The part of the page with the texts: every prompt with what each strategy made of it, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mindbatch.evaluation.comparison import (
    Comparison,
    MeasuredOutput,
    PromptOutputs,
    PromptReport,
    StrategyReport,
)
from mindbatch.evaluation.markup import Markup, element
from mindbatch.evaluation.word_changes import stretches

OPEN = 3
"""Prompts whose texts are shown from the start; the others unfold."""


def texts(comparison: Comparison) -> Iterator[Markup]:
    """A block for each prompt."""
    for position, prompt in enumerate(comparison.prompts):
        rows = [report.prompts[position] for report in comparison.strategies]
        yield element(
            "details",
            element("summary", element("span", f"{position + 1}", class_="number"), _prompt(prompt)),
            element("div", _cards(comparison.strategies, rows), class_="cards"),
            open=position < OPEN,
        )


def _prompt(prompt: PromptReport) -> Markup:
    ids = " ".join(map(str, prompt.prompt_token_ids))
    shown = (
        prompt.prompt
        if prompt.prompt is not None
        else f"token ids {ids}"
        if ids
        else "a prompt that cannot run"
    )
    return element("span", shown, class_="prompt", dir="auto")


def _cards(strategies: Sequence[StrategyReport], rows: Sequence[PromptOutputs]) -> Iterator[Markup]:
    """A card for each strategy; the first that has an output is what the others are compared with."""
    reference: tuple[str, MeasuredOutput] | None = None
    for report, row in zip(strategies, rows, strict=True):
        content = [element("p", row.error, class_="error")] if row.error is not None else []
        for output in row.outputs:
            content += [_facts(output, several=len(row.outputs) > 1), _text(output, reference)]
            reference = reference or (report.name, output)
        yield element("section", element("h3", report.name), content, class_="card")


def _facts(output: MeasuredOutput, several: bool) -> Markup:
    """One line about an output."""
    facts = [f"#{output.rank or output.index + 1}"] if several else []
    facts.append(f"log-prob {output.logprob:.1f}")
    if output.perplexity is not None:
        facts.append(f"perplexity {output.perplexity:.2f}")
    if output.repetition is not None:
        facts.append(f"repetition {output.repetition:.2f}")
    if output.score is not None:
        facts.append(f"score {output.score:.3f}")
    ends = "ended by itself" if output.finish_reason == "stop" else "cut at its limit"
    return element("p", " · ".join([*facts, f"{len(output.token_ids)} tokens, {ends}"]), class_="quiet")


def _text(output: MeasuredOutput, reference: tuple[str, MeasuredOutput] | None) -> Markup:
    if not output.text.strip():
        return element("p", "(no text)", class_="quiet")
    if reference is None:
        return element("p", output.text, class_="output", dir="auto")
    name, other = reference
    if output.text == other.text:
        return element("p", f"the same text as {name}", class_="quiet")
    pieces = [
        piece.text if piece.shared else element("mark", piece.text)
        for piece in stretches(output.text, other.text)
    ]
    return element("p", pieces, class_="output", dir="auto")
