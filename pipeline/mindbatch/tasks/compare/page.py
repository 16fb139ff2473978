"""Page printed by `mindbatch compare`: texts of the first prompts, and the table of the measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.evaluation.comparison import Comparison, PromptOutputs, PromptReport
from mindbatch.evaluation.findings import BEST, HOW_MARKED, marks_of, untold
from mindbatch.evaluation.measures import MEASURES, Measure
from mindbatch.io.screen_text import printable
from mindbatch.tasks.drawn_table import add_row, drawn, drawn_in_parts, new_table

if TYPE_CHECKING:
    from rich.table import Table


def compare_page(comparison: Comparison, limit: int) -> str:
    """The comparison for people: the texts of up to `limit` prompts, then the table."""
    blocks = []
    for position, prompt in enumerate(comparison.prompts[:limit]):
        rows = [(report.name, report.prompts[position]) for report in comparison.strategies]
        blocks.append("\n".join([f"{position + 1}. {_prompt(prompt)}", drawn(_texts(rows))]))
    more = len(comparison.prompts) - limit
    if more > 0:
        blocks.append(f"{more:,} more prompts; limit=N shows the texts of more, output.dir=FOLDER writes all")
    table = drawn_in_parts(MEASURES, partial(_measures, comparison))
    return "\n\n".join([*blocks, table, "\n".join(_notes(comparison))])


def _prompt(prompt: PromptReport) -> str:
    return printable(prompt.prompt) if prompt.prompt is not None else f"token ids {prompt.prompt_token_ids}"


def _texts(rows: Sequence[tuple[str, PromptOutputs]]) -> Table:
    table = _table(("", "left"), ("", "left"))
    table.show_header = False
    for name, row in rows:
        for line in _lines(row):
            add_row(table, [f"  {printable(name)}", line])
            name = ""
    return table


def _lines(row: PromptOutputs) -> Iterator[str]:
    if row.error is not None:
        yield f"({printable(row.error)})"
    for output in row.outputs:
        yield printable(output.text.replace("\n", " ").strip()) or "(no text)"


def _measures(comparison: Comparison, measures: Sequence[Measure]) -> Table:
    """The numbers; a space or a mark stands behind each, so that they stay aligned."""
    table = _table(("strategy", "left"), *((f"{measure.heading} ", "right") for measure in measures))
    marks = {measure.field: marks_of(comparison, measure.field) for measure in measures}
    for report in comparison.strategies:
        cells = [
            measure.shown(report.metrics) + marks[measure.field].get(report.name, " ") for measure in measures
        ]
        add_row(table, [printable(report.name), *cells])
    return table


def _notes(comparison: Comparison) -> list[str]:
    """Lists notes on how to read the table."""
    notes = untold(comparison)
    if any(marks_of(comparison, measure.field) for measure in MEASURES):
        notes.insert(0, f"{BEST} {HOW_MARKED}")
    return notes


def _table(*columns: tuple[str, str]) -> Table:
    table = new_table()
    for heading, justify in columns:
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    return table
