"""Tables of rich for what tasks print: cells are texts, never markup; other programs get whole lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Column = TypeVar("Column")

WIDEST = 10_000
"""Columns of a page that no terminal shows: lines are not broken for other programs."""


def new_table() -> Table:
    """A table without a frame."""
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)


def add_row(table: Table, cells: Sequence[str]) -> None:
    """Adds a row of texts: brackets in them are no markup."""
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
    return Console().width if sys.stdout.isatty() else WIDEST


def _console(width: int) -> Console:
    """Without colours: pages are escaped before they reach the terminal."""
    return Console(width=width, highlight=False, color_system=None)
