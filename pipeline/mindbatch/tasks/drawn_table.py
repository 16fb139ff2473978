"""Tables of rich for what tasks print: cells are texts, never markup; other programs get whole lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

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
    console = Console(width=None if sys.stdout.isatty() else WIDEST, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
