"""Text as people read it: aligned columns, ranges of numbers, tables of rich whose cells are no markup."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Column = TypeVar("Column")

WIDEST = 10_000
"""Columns of a page that no terminal shows: lines are not broken for other programs."""


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Lines with two spaces between the columns; the columns `right` are numbers, aligned at their ends."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers as 0-3, 8, 12-15."""
    groups: list[list[int]] = []
    for number in numbers:
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ", ".join(str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups)


def shape_text(shape: Iterable[object]) -> str:
    """Sizes, or parts of a shape, as [4, 16]."""
    return f"[{', '.join(map(str, shape))}]"


def new_table() -> Table:
    """A table without a frame."""
    from rich import box  # slow to import, as all of rich: aligned columns do without it
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)


def add_row(table: Table, cells: Sequence[str]) -> None:
    """Adds a row of texts: brackets in them are no markup."""
    from rich.text import Text

    table.add_row(*map(Text, cells))


def drawn(table: Table) -> str:
    """The table as wide as the terminal, or as it likes where there is none."""
    console = _console(_width())
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def drawn_in_parts(columns: Sequence[Column], table_of: Callable[[Sequence[Column]], Table]) -> str:
    """A table of all columns; several with as many as the terminal is wide enough for, where it is not."""
    width, endless = _width(), _console(WIDEST)
    for most in range(len(columns), 0, -1):
        parts = [table_of(columns[first : first + most]) for first in range(0, len(columns), most)]
        if all(endless.measure(part).maximum <= width for part in parts):
            break
    return "\n\n".join(map(drawn, parts))


def _width() -> int:
    return _console().width if sys.stdout.isatty() else WIDEST


def _console(width: int | None = None) -> Console:
    """Without colours: pages are escaped before they reach the terminal. width: None: the terminal's."""
    from rich.console import Console

    return Console(width=width, highlight=False, color_system=None)
